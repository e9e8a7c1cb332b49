import static java.util.stream.Collectors.joining;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.quota.ClientQuotaFilter;

/** listOffsets, deleteRecords, and what can be asked of the cluster as a whole. */
final class ClusterChecks {
    private static final TopicPartition READ = new TopicPartition("judge.read", 0);
    private static final TopicPartition EMPTY = new TopicPartition("judge.three", 1);

    private ClusterChecks() {}

    static void run() {
        offsets("before deletion", READ);
        offsets("empty", EMPTY);
        Judge.observe("Admin.listOffsets", "unknown partition", () ->
            Judge.get(Judge.admin.listOffsets(Map.of(new TopicPartition("judge.three", 9), OffsetSpec.latest()),
                new ListOffsetsOptions().timeoutMs(2000)).all()));
        delete();
        cluster();
        disks();
        others();
    }

    private static void offsets(String item, TopicPartition partition) {
        Map<String, OffsetSpec> specs = new LinkedHashMap<>();
        specs.put("earliest", OffsetSpec.earliest());
        specs.put("latest", OffsetSpec.latest());
        specs.put("maxTimestamp", OffsetSpec.maxTimestamp());
        specs.put("earliestLocal", OffsetSpec.earliestLocal());
        specs.put("latestTiered", OffsetSpec.latestTiered());
        specs.put("earliestPendingUpload", OffsetSpec.earliestPendingUpload());
        specs.put("forTimestamp in the middle", OffsetSpec.forTimestamp(ProducerChecks.TIME + 333));
        specs.put("forTimestamp of zero", OffsetSpec.forTimestamp(0));
        specs.put("forTimestamp past the end", OffsetSpec.forTimestamp(ProducerChecks.TIME + 100_000));
        specs.forEach((name, spec) -> {
            for (IsolationLevel isolation : IsolationLevel.values()) {
                Judge.observe("Admin.listOffsets", item + ", " + name + ", " + isolation.toString().toLowerCase(), () -> {
                    var result = Judge.get(Judge.admin.listOffsets(
                        Map.of(partition, spec), new ListOffsetsOptions(isolation)).all()).get(partition);
                    long time = result.timestamp();
                    return result.offset() + " time " + (time < 0 ? time : time - ProducerChecks.TIME)
                        + " " + result.leaderEpoch();
                });
            }
        });
    }

    private static void delete() {
        TopicPartition unknown = new TopicPartition("judge.three", 9);
        for (long before : new long[] {0, 30, 20, 101, -2, -1}) {
            Judge.observe("Admin.deleteRecords", "before " + before, () -> deleted(READ, before));
            if (before == 30) {
                offsets("after deletion", READ);
                Judge.observe("Admin.deleteRecords", "the first that is left", () ->
                    ConsumerChecks.read("judge.read", 0, 1).get(0).offset());
            }
        }
        Judge.observe("Admin.deleteRecords", "unknown partition", () -> deleted(unknown, 1));
        Judge.observe("Admin.deleteRecords", "compacted topic", () ->
            deleted(new TopicPartition("judge.compact", 0), 1));
    }

    private static String deleted(TopicPartition partition, long before) throws Exception {
        var records = Map.of(partition, RecordsToDelete.beforeOffset(before));
        var result = Judge.admin.deleteRecords(records, new org.apache.kafka.clients.admin.DeleteRecordsOptions().timeoutMs(3000));
        return "from " + Judge.get(result.lowWatermarks().get(partition)).lowWatermark();
    }

    private static void cluster() {
        String group = "Admin.describeCluster";
        Judge.observe(group, "nodes", () -> {
            var result = Judge.admin.describeCluster(new DescribeClusterOptions().includeFencedBrokers(true));
            return Judge.get(result.nodes()).stream()
                .map(node -> node.id() + " " + node.host() + " rack " + node.rack() + " fenced " + node.isFenced())
                .collect(joining(", "));
        });
        Judge.observe(group, "controller", () -> Judge.get(Judge.admin.describeCluster().controller()).id());
        Judge.observe(group, "characters of the cluster's id", () ->
            Judge.get(Judge.admin.describeCluster().clusterId()).length());
        Judge.observe(group, "what one may do", () -> {
            var options = new DescribeClusterOptions().includeAuthorizedOperations(true);
            var operations = Judge.get(Judge.admin.describeCluster(options).authorizedOperations());
            return operations == null ? "null" : new TreeSet<>(operations);
        });
        Judge.observe("Admin.describeFeatures", "names", () -> {
            var features = Judge.get(Judge.admin.describeFeatures().featureMetadata());
            return "finalized " + new TreeSet<>(features.finalizedFeatures().keySet())
                + " supported " + new TreeSet<>(features.supportedFeatures().keySet());
        });
    }

    private static void disks() {
        String group = "Admin.describeLogDirs";
        Judge.observe(group, "directories", () -> {
            var found = Judge.get(Judge.admin.describeLogDirs(List.of(0)).allDescriptions()).get(0).values();
            return found.stream().map(it -> "error " + it.error()
                + ", room known " + (it.totalBytes().isPresent() && it.usableBytes().isPresent())
                + ", fits " + (it.totalBytes().getAsLong() >= it.usableBytes().getAsLong())).toList();
        });
        Judge.observe(group, "sizes", () -> {
            var found = Judge.get(Judge.admin.describeLogDirs(List.of(0)).allDescriptions()).get(0).values();
            var replicas = found.iterator().next().replicaInfos();
            var full = replicas.get(new TopicPartition("judge.large", 0));
            var empty = replicas.get(EMPTY);
            return "large " + (full.size() > 1_000_000 && full.size() < 2_000_000) + ", empty " + empty.size()
                + ", lag " + full.offsetLag() + ", future " + full.isFuture();
        });
        Judge.observe(group, "unknown broker", () ->
            Judge.get(Judge.admin.describeLogDirs(List.of(99),
                new org.apache.kafka.clients.admin.DescribeLogDirsOptions().timeoutMs(2000)).allDescriptions()));
        Judge.observe("Admin.describeReplicaLogDirs", "known and unknown", () -> {
            var known = new TopicPartitionReplica("judge.three", 0, 0);
            var unknown = new TopicPartitionReplica("judge.unknown", 0, 0);
            var found = Judge.get(Judge.admin.describeReplicaLogDirs(Set.of(known, unknown)).all());
            return (found.get(known).getCurrentReplicaLogDir() != null) + " "
                + found.get(known).getCurrentReplicaOffsetLag() + " " + found.get(unknown).getCurrentReplicaLogDir();
        });
    }

    /** One call of each remaining API, so that nothing that a client can ask for goes unseen. */
    private static void others() {
        other("describeProducers", () -> {
            try (var producer = ProducerChecks.producer()) {
                producer.send(new ProducerRecord<>("judge.three", 2, null, ProducerChecks.bytes("x"))).get();
                var partition = new TopicPartition("judge.three", 2);
                var found = Judge.get(Judge.admin.describeProducers(List.of(partition)).all()).get(partition);
                return found.activeProducers().stream().map(it -> it.producerEpoch() + " " + it.lastSequence()
                    + " " + it.coordinatorEpoch() + " " + it.currentTransactionStartOffset()).toList();
            }
        });
        other("describeMetadataQuorum", () ->
            Judge.get(Judge.admin.describeMetadataQuorum().quorumInfo()).leaderId());
        other("electLeaders", () -> Judge.get(
            Judge.admin.electLeaders(ElectionType.PREFERRED, Set.of(EMPTY)).partitions()).get(EMPTY)
                .map(error -> error.getClass().getSimpleName()));
        other("listPartitionReassignments", () ->
            Judge.get(Judge.admin.listPartitionReassignments().reassignments()).size());
        other("alterPartitionReassignments, cancel", () ->
            Judge.get(Judge.admin.alterPartitionReassignments(Map.of(EMPTY, java.util.Optional.empty())).all()));
        other("listGroups", () -> Judge.get(Judge.admin.listGroups().all()).size() >= 0);
        other("describeConsumerGroups", () ->
            Judge.get(Judge.admin.describeConsumerGroups(List.of("judge.unknown")).all()));
        other("listConsumerGroupOffsets", () ->
            Judge.get(Judge.admin.listConsumerGroupOffsets("judge.unknown").partitionsToOffsetAndMetadata()));
        other("deleteConsumerGroups", () -> Judge.get(Judge.admin.deleteConsumerGroups(List.of("judge.unknown")).all()));
        other("listTransactions", () -> Judge.get(Judge.admin.listTransactions().all()).size() >= 0);
        other("describeTransactions", () ->
            Judge.get(Judge.admin.describeTransactions(List.of("judge.unknown")).all()));
        other("describeAcls", () -> Judge.get(Judge.admin.describeAcls(AclBindingFilter.ANY).values()));
        other("describeClientQuotas", () ->
            Judge.get(Judge.admin.describeClientQuotas(ClientQuotaFilter.all()).entities()));
        other("describeUserScramCredentials", () ->
            Judge.get(Judge.admin.describeUserScramCredentials().all()));
        other("describeDelegationToken", () ->
            Judge.get(Judge.admin.describeDelegationToken().delegationTokens()));
    }

    private static void other(String item, Callable<?> body) {
        Judge.observe("Admin, other calls", item, body);
    }
}
