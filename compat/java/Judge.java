import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.common.KafkaFuture;

/**
 * Uses a broker through Kafka's own clients and tells what it saw, a line for each observation:
 * group, item, value, parted by tabs. An error is told by its class. What differs from run to run
 * (ids, times, directories) is told by its shape. Two brokers that behave alike print the same.
 */
public final class Judge {
    static final int TIMEOUT_MS = 10_000;
    static String bootstrap;
    static Admin admin;

    private Judge() {}

    public static void main(String[] arguments) {
        bootstrap = arguments[0];
        try (Admin opened = Admin.create(common())) {
            admin = opened;
            TopicChecks.run();
            ProducerChecks.run();
            ConsumerChecks.run();
            ConfigChecks.run();
            ClusterChecks.run();
            TopicChecks.delete();
        }
    }

    static Properties common() {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("request.timeout.ms", "5000");
        properties.put("default.api.timeout.ms", String.valueOf(TIMEOUT_MS));
        return properties;
    }

    static Properties common(String... more) {
        Properties properties = common();
        for (int i = 0; i < more.length; i += 2) {
            properties.put(more[i], more[i + 1]);
        }
        return properties;
    }

    static <T> T get(KafkaFuture<T> future) throws Exception {
        return future.get(TIMEOUT_MS, TimeUnit.MILLISECONDS);
    }

    static void observe(String group, String item, Callable<?> body) {
        String seen;
        try {
            seen = String.valueOf(body.call());
        } catch (Exception | AssertionError error) {
            Throwable cause = error;
            while (cause.getCause() != null
                    && (cause instanceof ExecutionException || cause instanceof CompletionException)) {
                cause = cause.getCause();
            }
            seen = cause.getClass().getSimpleName();
            System.err.println(group + ", " + item + ": " + cause);
        }
        System.out.println(group + "\t" + item + "\t" + seen.replace('\n', ' ').replace('\t', ' '));
        System.out.flush();
    }

    /** A map's text in the order of its keys. */
    static String sorted(Map<?, ?> map) {
        Map<String, Object> ordered = new TreeMap<>();
        map.forEach((key, value) -> ordered.put(String.valueOf(key), value));
        return ordered.toString();
    }
}
