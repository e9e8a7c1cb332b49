import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** KafkaConsumer with partitions that it assigns itself, and then with a group. */
final class ConsumerChecks {
    private static final TopicPartition FIRST = new TopicPartition("judge.read", 0);
    private static final TopicPartition EMPTY = new TopicPartition("judge.read", 1);
    private static final TopicPartition UNKNOWN = new TopicPartition("judge.read", 9);

    private ConsumerChecks() {}

    interface Use {
        Object by(KafkaConsumer<byte[], byte[]> consumer) throws Exception;
    }

    static KafkaConsumer<byte[], byte[]> consumer(String... more) {
        Properties properties = Judge.common(more);
        properties.putIfAbsent("auto.offset.reset", "earliest");
        return new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    /** The first `count` records of a partition; fewer if they don't come in time. */
    static List<ConsumerRecord<byte[], byte[]>> read(String topic, int partition, int count) {
        List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();
        try (var consumer = consumer()) {
            consumer.assign(List.of(new TopicPartition(topic, partition)));
            long deadline = System.currentTimeMillis() + Judge.TIMEOUT_MS;
            while (records.size() < count && System.currentTimeMillis() < deadline) {
                consumer.poll(Duration.ofMillis(500)).forEach(records::add);
            }
        }
        return records;
    }

    /** Twenty batches of five records, ten milliseconds apart, one batch with an older time. */
    private static void fill() {
        ProducerChecks.topic("judge.read", 2, Map.of());
        try (var producer = ProducerChecks.producer("linger.ms", "5000")) {
            for (int i = 0; i < 100; i++) {
                long time = ProducerChecks.TIME + (i == 50 ? -5000 : i * 10L);
                producer.send(new ProducerRecord<>("judge.read", 0, time, null, ProducerChecks.bytes("" + i)));
                if (i % 5 == 4) {
                    producer.flush();
                }
            }
        }
    }

    static void run() {
        fill();
        use("positions", "beginning, end, seek", consumer -> {
            consumer.assign(List.of(FIRST, EMPTY));
            consumer.seekToBeginning(List.of(FIRST));
            List<Object> seen = new ArrayList<>(List.of(consumer.position(FIRST)));
            consumer.seekToEnd(List.of(FIRST, EMPTY));
            seen.add(consumer.position(FIRST));
            seen.add(consumer.position(EMPTY));
            consumer.seek(FIRST, 42);
            seen.add(consumer.position(FIRST));
            seen.add(firstOf(consumer));
            seen.add(consumer.currentLag(FIRST));
            return seen;
        });
        use("positions", "beginningOffsets", consumer -> Judge.sorted(consumer.beginningOffsets(List.of(FIRST, EMPTY))));
        use("positions", "endOffsets", consumer -> Judge.sorted(consumer.endOffsets(List.of(FIRST, EMPTY))));
        use("positions", "endOffsets of an unknown partition", consumer ->
            consumer.endOffsets(List.of(UNKNOWN), Duration.ofSeconds(2)));
        use("positions", "endOffsets of committed records", consumer ->
            Judge.sorted(consumer.endOffsets(List.of(FIRST, EMPTY))), "isolation.level", "read_committed");
        long[] times = {-6000, -5000, -1, 0, 1, 245, 500, 505, 990, 991, 100_000};
        for (long time : times) {
            use("offsetsForTimes", "at " + time + " ms", consumer ->
                told(consumer.offsetsForTimes(Map.of(FIRST, ProducerChecks.TIME + time)).get(FIRST)));
        }
        use("offsetsForTimes", "of an empty partition", consumer ->
            consumer.offsetsForTimes(Map.of(EMPTY, 0L)).get(EMPTY));
        for (String reset : List.of("earliest", "latest", "none", "by_duration:PT1H", "by_duration:P9999D")) {
            use("auto.offset.reset", reset + ", at the start", consumer -> {
                consumer.assign(List.of(FIRST));
                return consumer.position(FIRST, Duration.ofSeconds(2));
            }, "auto.offset.reset", reset);
            use("auto.offset.reset", reset + ", out of range", consumer -> {
                consumer.assign(List.of(FIRST));
                consumer.seek(FIRST, 1000);
                for (int i = 0; i < 10; i++) {
                    consumer.poll(Duration.ofMillis(200));
                    if (consumer.position(FIRST, Duration.ofSeconds(2)) != 1000) {
                        break;
                    }
                }
                return consumer.position(FIRST, Duration.ofSeconds(2)) >= 100 ? "end" : "before";
            }, "auto.offset.reset", reset);
        }
        use("poll", "a record's coordinates", consumer -> {
            consumer.assign(List.of(FIRST));
            consumer.seek(FIRST, 7);
            var record = consumer.poll(Duration.ofSeconds(10)).iterator().next();
            return record.offset() + " " + (record.timestamp() - ProducerChecks.TIME) + " " + record.timestampType()
                + " " + record.leaderEpoch() + " " + record.serializedKeySize() + " " + record.serializedValueSize();
        });
        use("poll", "max.poll.records", consumer -> {
            consumer.assign(List.of(FIRST));
            return consumer.poll(Duration.ofSeconds(10)).count();
        }, "max.poll.records", "3");
        use("poll", "small fetches", consumer -> {
            consumer.assign(List.of(FIRST));
            int count = 0;
            for (int i = 0; i < 200 && count < 100; i++) {
                count += consumer.poll(Duration.ofMillis(500)).count();
            }
            return count;
        }, "max.partition.fetch.bytes", "1", "fetch.max.bytes", "1");
        use("poll", "pause and resume", consumer -> {
            consumer.assign(List.of(FIRST, EMPTY));
            consumer.pause(List.of(FIRST));
            int paused = consumer.poll(Duration.ofMillis(700)).count();
            consumer.resume(List.of(FIRST));
            return paused + " " + firstOf(consumer);
        });
        use("poll", "fetch.min.bytes never reached", consumer -> {
            consumer.assign(List.of(FIRST));
            return firstOf(consumer);
        }, "fetch.min.bytes", "50000000", "fetch.max.wait.ms", "300");
        use("poll", "read_committed", consumer -> {
            consumer.assign(List.of(FIRST));
            return firstOf(consumer);
        }, "isolation.level", "read_committed");
        use("poll", "a record that comes while it waits", consumer -> {
            consumer.assign(List.of(EMPTY));
            consumer.poll(Duration.ofMillis(200));
            try (var producer = ProducerChecks.producer()) {
                producer.send(new ProducerRecord<>("judge.read", 1, null, ProducerChecks.bytes("late"))).get();
            }
            return firstOf(consumer);
        });
        use("metadata", "partitionsFor", consumer -> consumer.partitionsFor("judge.read").size());
        use("metadata", "partitionsFor a topic that may not be made", consumer ->
            consumer.partitionsFor("judge.unknown"), "allow.auto.create.topics", "false");
        use("metadata", "listTopics", consumer -> {
            Map<String, Integer> sizes = new TreeMap<>();
            consumer.listTopics().forEach((name, partitions) -> sizes.put(name, partitions.size()));
            sizes.keySet().removeIf(name -> !name.equals("judge.read") && !name.equals("judge.three"));
            return sizes;
        });
        for (String protocol : List.of("classic", "consumer")) {
            use("groups", "subscribe, " + protocol, consumer -> {
                consumer.subscribe(List.of("judge.read"));
                return firstOf(consumer).equals("nothing") ? "nothing" : "something";
            }, "group.id", "judge." + protocol, "group.protocol", protocol);
        }
    }

    private static String told(OffsetAndTimestamp found) {
        return found == null ? "none"
            : found.offset() + " time " + (found.timestamp() - ProducerChecks.TIME) + " " + found.leaderEpoch();
    }

    private static String firstOf(KafkaConsumer<byte[], byte[]> consumer) {
        for (int i = 0; i < 20; i++) {
            for (var record : consumer.poll(Duration.ofMillis(500))) {
                return record.partition() + "@" + record.offset() + " " + new String(record.value());
            }
        }
        return "nothing";
    }

    private static void use(String group, String item, Use use, String... settings) {
        Judge.observe("KafkaConsumer, " + group, item, () -> {
            try (var consumer = consumer(settings)) {
                return use.by(consumer);
            }
        });
    }
}
