import static org.apache.kafka.clients.admin.AlterConfigOp.OpType.APPEND;
import static org.apache.kafka.clients.admin.AlterConfigOp.OpType.DELETE;
import static org.apache.kafka.clients.admin.AlterConfigOp.OpType.SET;
import static org.apache.kafka.clients.admin.AlterConfigOp.OpType.SUBTRACT;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.AlterConfigsOptions;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.ListConfigResourcesOptions;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.config.ConfigResource.Type;

/** describeConfigs, incrementalAlterConfigs, listConfigResources. */
final class ConfigChecks {
    private static final ConfigResource TOPIC = new ConfigResource(Type.TOPIC, "judge.config");
    private static final ConfigResource BROKER = new ConfigResource(Type.BROKER, "0");
    private static final ConfigResource BROKERS = new ConfigResource(Type.BROKER, "");

    private ConfigChecks() {}

    static void run() {
        ProducerChecks.topic("judge.config", 1, Map.of("retention.ms", "1000000"));
        try {
            for (ConfigEntry entry : entries(TOPIC)) {
                Judge.observe("Admin.describeConfigs, topic", entry.name(), () -> told(entry));
            }
        } catch (Exception error) {
            Judge.observe("Admin.describeConfigs, topic", "all", () -> {
                throw error;
            });
        }
        String group = "Admin.describeConfigs";
        Judge.observe(group, "some names only", () -> {
            var described = Judge.get(Judge.admin.describeConfigs(List.of(TOPIC)).all()).get(TOPIC);
            return described.get("retention.ms").value() + " " + described.get("retention.ms").synonyms()
                + " " + described.get("retention.ms").documentation();
        });
        // Which configs a broker has is its own business; these are the ones that tools look for.
        for (String name : List.of("auto.create.topics.enable", "broker.id", "compression.type", "log.retention.ms",
                "message.max.bytes", "min.insync.replicas", "num.partitions", "default.replication.factor")) {
            Judge.observe(group, "broker, " + name, () -> {
                ConfigEntry entry = named(BROKER, name);
                return entry == null ? "missing" : "value=" + entry.value() + " type=" + entry.type()
                    + " readOnly=" + entry.isReadOnly() + " documented=" + (entry.documentation() != null);
            });
        }
        Judge.observe(group, "all brokers", () -> entries(BROKERS).size());
        refused("unknown topic", new ConfigResource(Type.TOPIC, "judge.unknown"));
        refused("illegal topic", new ConfigResource(Type.TOPIC, "judge/slash"));
        refused("broker that isn't a number", new ConfigResource(Type.BROKER, "first"));
        refused("unknown type", new ConfigResource(Type.UNKNOWN, "x"));
        Judge.observe(group, "broker's loggers", () ->
            entries(new ConfigResource(Type.BROKER_LOGGER, "0")).isEmpty() ? "none" : "some");
        alter();
        resources();
    }

    private static void refused(String item, ConfigResource resource) {
        Judge.observe("Admin.describeConfigs", item, () -> entries(resource).size());
    }

    private static List<ConfigEntry> entries(ConfigResource resource) throws Exception {
        var options = new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
        List<ConfigEntry> entries = new ArrayList<>(
            Judge.get(Judge.admin.describeConfigs(List.of(resource), options).all()).get(resource).entries());
        entries.sort(java.util.Comparator.comparing(ConfigEntry::name));
        return entries;
    }

    private static ConfigEntry named(ConfigResource resource, String name) throws Exception {
        return entries(resource).stream().filter(it -> it.name().equals(name)).findFirst().orElse(null);
    }

    private static String told(ConfigEntry entry) {
        return "value=" + entry.value() + " type=" + entry.type() + " source=" + entry.source()
            + " default=" + entry.isDefault() + " readOnly=" + entry.isReadOnly()
            + " sensitive=" + entry.isSensitive() + " documented=" + (entry.documentation() != null)
            + " synonyms=" + entry.synonyms().stream()
                .map(it -> it.name() + "=" + it.value() + " " + it.source()).toList();
    }

    private static void alter() {
        change("set", TOPIC, "retention.ms", "2000", SET);
        change("delete", TOPIC, "retention.ms", null, DELETE);
        change("delete what isn't set", TOPIC, "retention.ms", "", DELETE);
        change("append", TOPIC, "cleanup.policy", "compact", APPEND);
        change("append again", TOPIC, "cleanup.policy", "compact", APPEND);
        change("subtract", TOPIC, "cleanup.policy", "delete", SUBTRACT);
        change("subtract what isn't there", TOPIC, "cleanup.policy", "delete", SUBTRACT);
        change("subtract the last", TOPIC, "cleanup.policy", "compact", SUBTRACT);
        change("set a list with spaces", TOPIC, "cleanup.policy", "compact, delete", SET);
        change("set a list with a repetition", TOPIC, "cleanup.policy", "delete,delete", SET);
        change("set a list with an unknown item", TOPIC, "cleanup.policy", "compact,burn", SET);
        change("set an empty list", TOPIC, "cleanup.policy", "", SET);
        change("append to a list of replicas", TOPIC, "leader.replication.throttled.replicas", "0:0", APPEND);
        change("append to what isn't a list", TOPIC, "retention.ms", "1", APPEND);
        change("subtract from what isn't a list", TOPIC, "retention.ms", "1", SUBTRACT);
        change("set an unknown config", TOPIC, "no.such.config", "1", SET);
        change("delete an unknown config", TOPIC, "no.such.config", "", DELETE);
        change("set to a bad number", TOPIC, "retention.ms", "soon", SET);
        change("set to a number with spaces", TOPIC, "retention.ms", " 3000 ", SET);
        change("set out of bounds", TOPIC, "max.message.bytes", "-1", SET);
        change("set a boolean in capitals", TOPIC, "preallocate", "TRUE", SET);
        change("set a boolean to nonsense", TOPIC, "preallocate", "perhaps", SET);
        change("set a share", TOPIC, "min.cleanable.dirty.ratio", "0.75", SET);
        change("set a share out of bounds", TOPIC, "min.cleanable.dirty.ratio", "1.5", SET);
        change("set compression.gzip.level", TOPIC, "compression.gzip.level", "9", SET);
        change("set min.insync.replicas", TOPIC, "min.insync.replicas", "2", SET);
        change("delete min.insync.replicas", TOPIC, "min.insync.replicas", "", DELETE);
        change("set to nothing", TOPIC, "retention.ms", null, SET);
        change("set on an unknown topic", new ConfigResource(Type.TOPIC, "judge.unknown"), "retention.ms", "1", SET);
        change("set on one broker", BROKER, "log.retention.ms", "3600000", SET);
        Judge.observe("Admin.incrementalAlterConfigs", "what the topic makes of it", () -> told(named(TOPIC, "retention.ms")));
        change("set on all brokers", BROKERS, "log.retention.ms", "7200000", SET);
        Judge.observe("Admin.incrementalAlterConfigs", "what the broker makes of both", () ->
            told(named(BROKER, "log.retention.ms")));
        change("delete on one broker", BROKER, "log.retention.ms", "", DELETE);
        change("delete on all brokers", BROKERS, "log.retention.ms", "", DELETE);
        change("set what is read-only", BROKER, "broker.id", "7", SET);
        String group = "Admin.incrementalAlterConfigs";
        Judge.observe(group, "only validated", () -> {
            alter(TOPIC, true, new AlterConfigOp(new ConfigEntry("retention.ms", "77"), SET));
            return named(TOPIC, "retention.ms").value();
        });
        Judge.observe(group, "one good, one bad", () -> {
            try {
                alter(TOPIC, false, new AlterConfigOp(new ConfigEntry("segment.ms", "77"), SET),
                    new AlterConfigOp(new ConfigEntry("segment.bytes", "x"), SET));
            } catch (java.util.concurrent.ExecutionException error) {
                return error.getCause().getClass().getSimpleName() + " " + named(TOPIC, "segment.ms").value();
            }
            return "changed";
        });
        Judge.observe(group, "the same config twice", () -> {
            alter(TOPIC, false, new AlterConfigOp(new ConfigEntry("segment.ms", "77"), SET),
                new AlterConfigOp(new ConfigEntry("segment.ms", "78"), SET));
            return named(TOPIC, "segment.ms").value();
        });
    }

    private static void change(String item, ConfigResource resource, String name, String value, AlterConfigOp.OpType how) {
        Judge.observe("Admin.incrementalAlterConfigs", item, () -> {
            String before = state(resource, name);
            alter(resource, false, new AlterConfigOp(new ConfigEntry(name, value), how));
            // Kafka's brokers learn of a change a little after it was acknowledged.
            for (int i = 0; i < 8 && state(resource, name).equals(before); i++) {
                Thread.sleep(50);
            }
            return state(resource, name);
        });
    }

    private static String state(ConfigResource resource, String name) throws Exception {
        try {
            ConfigEntry entry = named(resource, name);
            return entry == null ? "not there" : entry.value() + " " + entry.source();
        } catch (java.util.concurrent.ExecutionException error) {
            return error.getCause().getClass().getSimpleName();
        }
    }

    private static void alter(ConfigResource resource, boolean validateOnly, AlterConfigOp... operations) throws Exception {
        Judge.get(Judge.admin.incrementalAlterConfigs(Map.of(resource, List.of(operations)),
            new AlterConfigsOptions().validateOnly(validateOnly)).all());
    }

    private static void resources() {
        for (Set<Type> types : List.of(Set.of(Type.TOPIC), Set.of(Type.BROKER), Set.of(Type.CLIENT_METRICS), Set.of(Type.GROUP))) {
            Judge.observe("Admin.listConfigResources", types.toString(), () -> {
                var found = Judge.get(Judge.admin.listConfigResources(types, new ListConfigResourcesOptions()).all());
                var names = new TreeSet<String>();
                found.forEach(it -> names.add(it.name()));
                names.removeIf(name -> name.startsWith("judge") && !name.equals("judge.config") || name.startsWith("__"));
                return names;
            });
        }
    }
}
