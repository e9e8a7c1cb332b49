import static java.util.stream.Collectors.joining;

import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreatePartitionsOptions;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.DescribeTopicsOptions;
import org.apache.kafka.clients.admin.ListTopicsOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.admin.TopicListing;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.Uuid;

/** createTopics, createPartitions, describeTopics, listTopics, deleteTopics. */
final class TopicChecks {
    private TopicChecks() {}

    static void run() {
        String group = "Admin.createTopics";
        Judge.observe(group, "three partitions", () -> created(new NewTopic("judge.three", 3, (short) 1), false));
        Judge.observe(group, "the cluster's defaults", () ->
            created(new NewTopic("judge.default", java.util.Optional.empty(), java.util.Optional.empty()), false));
        Judge.observe(group, "with configs", () ->
            created(new NewTopic("judge.configured", 1, (short) 1)
                .configs(Map.of("cleanup.policy", "compact,delete", "retention.ms", "12345")), false));
        Judge.observe(group, "assigned replicas", () ->
            created(new NewTopic("judge.assigned", Map.of(0, List.of(0), 1, List.of(0))), false));
        Judge.observe(group, "only validated", () -> created(new NewTopic("judge.never", 2, (short) 1), true));
        refused("exists already", new NewTopic("judge.three", 1, (short) 1));
        refused("exists already, only validated", new NewTopic("judge.three", 1, (short) 1));
        refused("empty name", new NewTopic("", 1, (short) 1));
        refused("name of a dot", new NewTopic(".", 1, (short) 1));
        refused("name of two dots", new NewTopic("..", 1, (short) 1));
        refused("name with a slash", new NewTopic("judge/slash", 1, (short) 1));
        refused("name of 249 characters", new NewTopic("j".repeat(249), 1, (short) 1));
        refused("name of 250 characters", new NewTopic("j".repeat(250), 1, (short) 1));
        refused("name that differs only by _ for a dot", new NewTopic("judge_three", 1, (short) 1));
        refused("no partitions", new NewTopic("judge.never", 0, (short) 1));
        refused("partitions below nothing", new NewTopic("judge.never", -5, (short) 1));
        refused("no replicas", new NewTopic("judge.never", 1, (short) 0));
        refused("more replicas than nodes", new NewTopic("judge.never", 1, (short) 3));
        refused("replica on an unknown node", new NewTopic("judge.never", Map.of(0, List.of(99))));
        refused("two replicas on a node", new NewTopic("judge.never", Map.of(0, List.of(0, 0))));
        refused("assignment without replicas", new NewTopic("judge.never", Map.of(0, List.of())));
        refused("assignment with a gap", new NewTopic("judge.never", Map.of(0, List.of(0), 2, List.of(0))));
        refused("unknown config", new NewTopic("judge.never", 1, (short) 1).configs(Map.of("no.such.config", "1")));
        refused("config that isn't a number",
            new NewTopic("judge.never", 1, (short) 1).configs(Map.of("retention.ms", "soon")));
        refused("config out of bounds",
            new NewTopic("judge.never", 1, (short) 1).configs(Map.of("retention.ms", "-2")));
        refused("config that isn't a choice",
            new NewTopic("judge.never", 1, (short) 1).configs(Map.of("cleanup.policy", "burn")));
        refused("configs that contradict each other", new NewTopic("judge.never", 1, (short) 1)
            .configs(Map.of("min.compaction.lag.ms", "2000", "max.compaction.lag.ms", "1000")));
        Judge.observe(group, "one good, one bad", () -> {
            var result = Judge.admin.createTopics(List.of(
                new NewTopic("judge.good", 1, (short) 1), new NewTopic("judge.bad", 1, (short) 9)));
            Map<String, String> seen = new TreeMap<>();
            for (String name : List.of("judge.good", "judge.bad")) {
                try {
                    Judge.get(result.values().get(name));
                    seen.put(name, "made");
                } catch (java.util.concurrent.ExecutionException error) {
                    seen.put(name, error.getCause().getClass().getSimpleName());
                }
            }
            return seen;
        });

        partitions();
        describe();
    }

    private static void refused(String item, NewTopic topic) {
        boolean validate = item.endsWith("only validated") || !topic.name().startsWith("judge.never");
        Judge.observe("Admin.createTopics", item, () -> created(topic, validate));
    }

    private static String created(NewTopic topic, boolean validateOnly) throws Exception {
        var result = Judge.admin.createTopics(List.of(topic), new CreateTopicsOptions().validateOnly(validateOnly));
        String name = topic.name();
        Judge.get(result.all());
        var config = Judge.get(result.config(name));
        String own = config.entries().stream()
            .filter(entry -> entry.source() == ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG)
            .map(entry -> entry.name() + "=" + entry.value())
            .sorted().collect(joining(", "));
        return Judge.get(result.numPartitions(name)) + " partitions, "
            + Judge.get(result.replicationFactor(name)) + " replicas, id "
            + (validateOnly ? "unknown" : known(Judge.get(result.topicId(name))))
            + ", configs [" + own + "]";
    }

    private static String known(Uuid id) {
        return id == null || id.equals(Uuid.ZERO_UUID) ? "missing" : "known";
    }

    private static void partitions() {
        grow("to two", "judge.configured", NewPartitions.increaseTo(2), false);
        grow("to three, assigned", "judge.configured", NewPartitions.increaseTo(3, List.of(List.of(0))), false);
        grow("to as many", "judge.three", NewPartitions.increaseTo(3), false);
        grow("to fewer", "judge.three", NewPartitions.increaseTo(2), false);
        grow("to none", "judge.three", NewPartitions.increaseTo(0), false);
        grow("only validated", "judge.three", NewPartitions.increaseTo(9), true);
        grow("unknown topic", "judge.unknown", NewPartitions.increaseTo(9), false);
        grow("on an unknown node", "judge.three", NewPartitions.increaseTo(4, List.of(List.of(99))), false);
        grow("too few assigned", "judge.three", NewPartitions.increaseTo(5, List.of(List.of(0))), false);
        grow("more replicas than the others", "judge.three",
            NewPartitions.increaseTo(4, List.of(List.of(0, 1))), false);
    }

    private static void grow(String item, String topic, NewPartitions partitions, boolean validateOnly) {
        Judge.observe("Admin.createPartitions", item, () -> {
            var options = new CreatePartitionsOptions().validateOnly(validateOnly);
            Judge.get(Judge.admin.createPartitions(Map.of(topic, partitions), options).all());
            return Judge.get(Judge.admin.describeTopics(List.of(topic)).allTopicNames())
                .get(topic).partitions().size() + " partitions";
        });
    }

    private static void describe() {
        String group = "Admin.describeTopics";
        for (String name : List.of("judge.three", "judge.assigned", "judge.unknown", "judge/slash", "")) {
            Judge.observe(group, "'" + name + "'", () ->
                told(Judge.get(Judge.admin.describeTopics(List.of(name)).allTopicNames()).get(name)));
        }
        Judge.observe(group, "by id", () -> {
            Uuid id = idOf("judge.three");
            var topics = TopicCollection.ofTopicIds(List.of(id));
            return told(Judge.get(Judge.admin.describeTopics(topics).allTopicIds()).get(id));
        });
        Judge.observe(group, "by an unknown id", () -> {
            var topics = TopicCollection.ofTopicIds(List.of(new Uuid(1, 2)));
            return Judge.get(Judge.admin.describeTopics(topics).allTopicIds());
        });
        Judge.observe(group, "with what one may do", () -> {
            var options = new DescribeTopicsOptions().includeAuthorizedOperations(true);
            var topic = Judge.get(Judge.admin.describeTopics(List.of("judge.three"), options).allTopicNames());
            var operations = topic.get("judge.three").authorizedOperations();
            return operations == null ? "null" : new TreeSet<>(operations);
        });
        Judge.observe(group, "in pages of two partitions", () -> {
            var options = new DescribeTopicsOptions().partitionSizeLimitPerResponse(2);
            var topics = Judge.get(Judge.admin.describeTopics(
                List.of("judge.three", "judge.assigned", "judge.configured"), options).allTopicNames());
            Map<String, Integer> sizes = new TreeMap<>();
            topics.forEach((name, topic) -> sizes.put(name, topic.partitions().size()));
            return sizes;
        });
        Judge.observe("Admin.listTopics", "all", () ->
            Judge.get(Judge.admin.listTopics(new ListTopicsOptions().listInternal(true)).listings()).stream()
                .filter(topic -> topic.name().startsWith("judge"))
                .sorted(java.util.Comparator.comparing(TopicListing::name))
                .map(topic -> topic.name() + " " + known(topic.topicId()) + " " + topic.isInternal())
                .collect(joining(", ")));
    }

    private static Uuid idOf(String name) throws Exception {
        return Judge.get(Judge.admin.describeTopics(List.of(name)).allTopicNames()).get(name).topicId();
    }

    private static String told(TopicDescription topic) {
        return topic.name() + " " + known(topic.topicId()) + " internal=" + topic.isInternal() + " "
            + topic.partitions().stream()
                .map(it -> it.partition() + ": leader " + it.leader().id()
                    + " replicas " + it.replicas().stream().map(Node::id).toList()
                    + " isr " + it.isr().stream().map(Node::id).toList()
                    + " elr " + it.elr() + " last " + it.lastKnownElr())
                .collect(joining("; "));
    }

    static void delete() {
        String group = "Admin.deleteTopics";
        Judge.observe(group, "by name", () -> gone(TopicCollection.ofTopicNames(List.of("judge.default"))));
        Judge.observe(group, "by name again", () -> gone(TopicCollection.ofTopicNames(List.of("judge.default"))));
        Judge.observe(group, "illegal name", () -> gone(TopicCollection.ofTopicNames(List.of("judge/slash"))));
        Judge.observe(group, "empty name", () -> gone(TopicCollection.ofTopicNames(List.of(""))));
        Judge.observe(group, "by id", () -> gone(TopicCollection.ofTopicIds(List.of(idOf("judge.three")))));
        Judge.observe(group, "by an unknown id", () -> gone(TopicCollection.ofTopicIds(List.of(new Uuid(1, 2)))));
        Judge.observe(group, "all the others", () -> {
            var names = Judge.get(Judge.admin.listTopics().names()).stream()
                .filter(name -> name.startsWith("judge")).sorted().toList();
            gone(TopicCollection.ofTopicNames(names));
            return names;
        });
    }

    private static String gone(TopicCollection topics) throws Exception {
        Judge.get(Judge.admin.deleteTopics(topics).all());
        return "deleted";
    }
}
