import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** KafkaProducer: what is sent comes back equal, and what is wrong is refused. */
final class ProducerChecks {
    /** Not so old that retention would take the records away. */
    static final long TIME = System.currentTimeMillis() - 7_200_000;
    private static final long TOO_OLD = TIME - 172_800_000;
    private static final int COUNT = 300;

    private ProducerChecks() {}

    static KafkaProducer<byte[], byte[]> producer(String... more) {
        Properties properties = Judge.common(more);
        properties.putIfAbsent("max.block.ms", "10000");
        return new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static void topic(String name, int partitions, Map<String, String> configs) {
        try {
            Judge.get(Judge.admin.createTopics(
                List.of(new NewTopic(name, partitions, (short) 1).configs(configs))).all());
        } catch (Exception error) {
            throw new IllegalStateException("topic " + name, error);
        }
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static void run() {
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            roundTrip(codec + ", idempotent", "compression.type", codec, "linger.ms", "20");
        }
        for (String acks : List.of("0", "1", "all")) {
            roundTrip("acks=" + acks + ", not idempotent", "acks", acks, "enable.idempotence", "false");
        }
        roundTrip("a batch for each record", "batch.size", "0");
        roundTrip("one request at a time", "max.in.flight.requests.per.connection", "1");
        stored();
        large();
        refused();
        rest();
    }

    private static void roundTrip(String item, String... settings) {
        Judge.observe("KafkaProducer, read back", item, () -> {
            String name = "judge.trip." + item.replaceAll("[^a-z0-9]", "");
            topic(name, 2, Map.of());
            return sendAndRead(name, settings);
        });
    }

    private static String sendAndRead(String name, String... settings) throws Exception {
        List<ProducerRecord<byte[], byte[]>> sent = new ArrayList<>();
        List<Future<RecordMetadata>> answers = new ArrayList<>();
        try (var producer = producer(settings)) {
            for (int i = 0; i < COUNT; i++) {
                var record = new ProducerRecord<>(name, i % 2, TIME + i,
                    i % 7 == 0 ? null : bytes("key " + i), i % 11 == 0 ? null : bytes("värde ".repeat(i % 40) + i));
                if (i % 3 == 0) {
                    record.headers().add("first", bytes("ü" + i)).add("first", bytes("again"))
                        .add("nothing", null).add("", new byte[0]);
                }
                sent.add(record);
                answers.add(producer.send(record));
            }
            producer.flush();
        }
        String offsets = "in order";
        for (int i = 0; i < COUNT; i++) {
            long offset = answers.get(i).get(1, TimeUnit.SECONDS).offset();
            if (offset != i / 2) {
                offsets = "record " + i + " at " + offset;
                break;
            }
        }
        for (int partition = 0; partition < 2; partition++) {
            var read = ConsumerChecks.read(name, partition, COUNT / 2);
            for (int i = 0; i < COUNT / 2; i++) {
                String difference = difference(sent.get(2 * i + partition), read.get(i));
                if (difference != null || read.get(i).offset() != i) {
                    return "record " + i + " of partition " + partition + ": " + difference;
                }
            }
        }
        return COUNT + " equal, offsets " + offsets;
    }

    private static String difference(ProducerRecord<byte[], byte[]> sent, ConsumerRecord<byte[], byte[]> read) {
        if (!Arrays.equals(sent.key(), read.key())) {
            return "key";
        }
        if (!Arrays.equals(sent.value(), read.value())) {
            return "value";
        }
        if (sent.timestamp() != null && sent.timestamp() != read.timestamp()) {
            return "timestamp";
        }
        Header[] left = sent.headers().toArray();
        Header[] right = read.headers().toArray();
        boolean same = left.length == right.length;
        for (int i = 0; same && i < left.length; i++) {
            same = left[i].key().equals(right[i].key()) && Arrays.equals(left[i].value(), right[i].value());
        }
        return same ? null : "headers";
    }

    /** Topics that change what they are sent. */
    private static void stored() {
        String group = "KafkaProducer, topic configs";
        for (String codec : List.of("uncompressed", "gzip", "snappy", "lz4", "zstd")) {
            Judge.observe(group, "compression.type=" + codec, () -> {
                topic("judge.stored." + codec, 2, Map.of("compression.type", codec));
                return sendAndRead("judge.stored." + codec, "compression.type", "lz4", "linger.ms", "20");
            });
        }
        Judge.observe(group, "LogAppendTime", () -> {
            topic("judge.append", 1, Map.of("message.timestamp.type", "LogAppendTime"));
            long before = System.currentTimeMillis();
            RecordMetadata answer;
            try (var producer = producer("compression.type", "gzip")) {
                answer = producer.send(new ProducerRecord<>("judge.append", 0, TIME, null, bytes("x"))).get();
            }
            var read = ConsumerChecks.read("judge.append", 0, 1).get(0);
            return "acknowledged in range " + (answer.timestamp() >= before - 1000)
                + ", read " + read.timestampType() + ", equal " + (read.timestamp() == answer.timestamp());
        });
        Judge.observe(group, "timestamp far ahead", () -> {
            topic("judge.time", 1, Map.of("message.timestamp.after.max.ms", "3600000",
                "message.timestamp.before.max.ms", "86400000"));
            return sent("judge.time", System.currentTimeMillis() + 7_200_000, bytes("k"));
        });
        Judge.observe(group, "timestamp far behind", () -> sent("judge.time", TOO_OLD, bytes("k")));
        Judge.observe(group, "timestamp in bounds", () ->
            sent("judge.time", System.currentTimeMillis() + 1_800_000, bytes("k")));
        Judge.observe(group, "no key on a compacted topic", () -> {
            topic("judge.compact", 1, Map.of("cleanup.policy", "compact"));
            return sent("judge.compact", TIME, null);
        });
        Judge.observe(group, "key on a compacted topic", () -> sent("judge.compact", TIME, bytes("k")));
    }

    private static String sent(String topic, long time, byte[] key) throws Exception {
        try (var producer = producer()) {
            return "offset " + producer.send(new ProducerRecord<>(topic, 0, time, key, bytes("x"))).get().offset();
        }
    }

    private static void large() {
        String group = "KafkaProducer, sizes";
        Judge.observe(group, "a record just below max.message.bytes", () -> {
            topic("judge.large", 1, Map.of());
            return large(1_048_588 - 100, "none");
        });
        Judge.observe(group, "a record above max.message.bytes", () -> large(1_048_588, "none"));
        Judge.observe(group, "a record above it that compresses well", () -> large(3_000_000, "zstd"));
        Judge.observe(group, "a batch above it is split", () -> {
            topic("judge.split", 1, Map.of());
            byte[] value = new byte[400_000];
            new Random(1).nextBytes(value);
            List<Future<RecordMetadata>> answers = new ArrayList<>();
            try (var producer = producer("batch.size", "4000000", "linger.ms", "500", "max.request.size", "8000000")) {
                for (int i = 0; i < 9; i++) {
                    answers.add(producer.send(new ProducerRecord<>("judge.split", bytes("key " + i), value)));
                }
            }
            List<Long> offsets = new ArrayList<>();
            for (var answer : answers) {
                offsets.add(answer.get().offset());
            }
            var keys = ConsumerChecks.read("judge.split", 0, 9).stream().map(it -> new String(it.key())).toList();
            return offsets + " " + keys;
        });
    }

    private static String large(int size, String codec) throws Exception {
        byte[] value = new byte[size];
        if (codec.equals("none")) {
            new Random(1).nextBytes(value);
        }
        try (var producer = producer("max.request.size", "8000000", "compression.type", codec)) {
            long offset = producer.send(new ProducerRecord<>("judge.large", value)).get().offset();
            TopicPartition partition = new TopicPartition("judge.large", 0);
            try (var consumer = ConsumerChecks.consumer("max.partition.fetch.bytes", "1000", "fetch.max.bytes", "1000")) {
                consumer.assign(List.of(partition));
                consumer.seek(partition, offset);
                var records = consumer.poll(Duration.ofSeconds(10));
                return "offset " + offset + ", equal "
                    + Arrays.equals(value, records.iterator().next().value());
            }
        }
    }

    private static void refused() {
        String group = "KafkaProducer, refused";
        Judge.observe(group, "illegal topic", () -> sent("judge/slash", TIME, null));
        Judge.observe(group, "unknown partition", () -> {
            try (var producer = producer("max.block.ms", "1500")) {
                return producer.send(new ProducerRecord<>("judge.three", 99, null, bytes("x"))).get().offset();
            }
        });
    }

    private static void rest() {
        String group = "KafkaProducer, the rest";
        Judge.observe(group, "topic made on demand", () -> {
            try (var producer = producer()) {
                var answer = producer.send(new ProducerRecord<>("judge.ondemand", bytes("x"))).get();
                return answer.partition() + "@" + answer.offset() + " of "
                    + producer.partitionsFor("judge.ondemand").size();
            }
        });
        Judge.observe(group, "partitionsFor", () -> {
            try (var producer = producer()) {
                return producer.partitionsFor("judge.three").stream()
                    .map(it -> it.partition() + " " + it.leader().id() + " " + it.replicas().length
                        + " " + it.inSyncReplicas().length + " " + it.offlineReplicas().length)
                    .sorted().toList();
            }
        });
        Judge.observe(group, "initTransactions", () -> {
            try (var producer = producer("transactional.id", "judge", "max.block.ms", "10000")) {
                producer.initTransactions();
                return "initialised";
            }
        });
    }
}
