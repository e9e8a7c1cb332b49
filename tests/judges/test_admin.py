"""Administration, as far as each client's admin goes."""

import uuid

from confluent_kafka import TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    OffsetSpec,
)
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource as PythonConfigResource

from tests.helpers import eventually, unique
from tests.judges.confluent import TIMEOUT_S, Confluent, result
from tests.judges.judge import Admin, Judge, sample
from tests.judges.python import KafkaPython


def test_every_admin_finds_the_cluster_and_its_nodes(admin: Admin) -> None:
    assert len(admin.node_ids()) == 1


def test_every_admin_reads_a_brokers_configuration(admin: Admin) -> None:
    (node_id,) = admin.node_ids()
    config = admin.broker_config(node_id)
    assert config["auto.create.topics.enable"] == "true"
    assert "message.max.bytes" in config


def test_every_admin_sees_a_topics_settings_with_their_defaults(admin: Admin, topic: str) -> None:
    config = admin.config(topic)
    assert config["cleanup.policy"] == "delete"
    assert config["compression.type"] == "producer"
    assert config["message.timestamp.type"] == "CreateTime"
    assert config["retention.bytes"] == "-1"
    assert config["segment.bytes"] == "1073741824"
    assert config["min.insync.replicas"] == "1"


def test_settings_given_at_creation_are_in_force_and_are_told_apart_from_defaults(
    confluent: Confluent,
) -> None:
    topic = unique("configured")
    confluent.create_topic(topic, config={"cleanup.policy": "compact", "segment.bytes": "1048576"})
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    entries = result(confluent.admin.describe_configs([resource]))
    assert entries["cleanup.policy"].value == "compact"
    assert entries["cleanup.policy"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert entries["segment.bytes"].value == "1048576"
    assert entries["retention.ms"].source == ConfigSource.DEFAULT_CONFIG.value
    assert entries["retention.ms"].is_default


def test_a_setting_is_appended_to_subtracted_from_and_reset(confluent: Confluent) -> None:
    topic = unique("incremental")
    confluent.create_topic(topic)

    def alter(operation: AlterConfigOpType, value: str | None) -> str | None:
        entry = ConfigEntry("cleanup.policy", value, incremental_operation=operation)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        result(confluent.admin.incremental_alter_configs([resource]))
        return confluent.config(topic)["cleanup.policy"]

    assert alter(AlterConfigOpType.APPEND, "compact") == "delete,compact"
    assert alter(AlterConfigOpType.SUBTRACT, "delete") == "compact"
    assert alter(AlterConfigOpType.DELETE, None) == "delete"


def test_a_rehearsed_creation_creates_nothing(confluent: Confluent) -> None:
    topic = unique("rehearsed")
    new = NewTopic(topic, num_partitions=3, replication_factor=1)
    result(confluent.admin.create_topics([new], validate_only=True))
    assert topic not in confluent.describe_topics()


def test_a_topic_keeps_its_id_and_a_new_one_of_the_same_name_gets_another(
    confluent: Confluent,
) -> None:
    topic = unique("identified")

    def topic_id() -> str:
        described = confluent.admin.describe_topics(TopicCollection([topic]))
        return str(described[topic].result(TIMEOUT_S).topic_id)

    confluent.create_topic(topic, partitions=2)
    first = topic_id()
    assert first == topic_id()
    confluent.delete_topic(topic)
    assert eventually(lambda: topic not in confluent.describe_topics())
    confluent.create_topic(topic, partitions=2)
    assert first != topic_id()


def test_a_topic_is_deleted_by_its_id(kafka_python: KafkaPython, bootstrap: str) -> None:
    topic = unique("by-id")
    kafka_python.create_topic(topic)
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        (described,) = admin.describe_topics([topic])
        admin.delete_topics([uuid.UUID(str(described["topic_id"]))])
        assert eventually(lambda: topic not in admin.list_topics())
    finally:
        admin.close()


def test_offsets_are_listed_by_earliest_latest_and_newest(confluent: Confluent, topic: str) -> None:
    messages = sample(10)
    messages.reverse()  # the newest record comes first
    confluent.produce(topic, messages)
    confluent.delete_records(topic, before_offset=0)
    place = TopicPartition(topic, 0)

    def offset(spec: OffsetSpec) -> int:
        found = result(confluent.admin.list_offsets({place: spec}))
        return int(found.offset)

    assert offset(OffsetSpec.earliest()) == 0
    assert offset(OffsetSpec.latest()) == 10
    assert offset(OffsetSpec.max_timestamp()) == 0


def test_log_directories_tell_the_size_of_every_partition(
    kafka_python: KafkaPython, confluent: Confluent, bootstrap: str
) -> None:
    topic = unique("sized")
    confluent.create_topic(topic, partitions=3)
    confluent.produce(topic, sample(100), partition=1)
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        described = admin.describe_log_dirs([topic])
    finally:
        admin.close()
    sizes = {
        partition["partition_index"]: partition["partition_size"]
        for broker in described
        for directory in broker["log_dirs"]
        for it in directory["topics"]
        if it["name"] == topic
        for partition in it["partitions"]
    }
    assert sorted(sizes) == [0, 1, 2]
    assert sizes[0] == sizes[2] < 100, "nothing but what a leader notes for itself"
    assert sizes[1] > 1000


def test_topic_partitions_are_described_page_by_page(confluent: Confluent, bootstrap: str) -> None:
    topic = unique("paged")
    confluent.create_topic(topic, partitions=5)
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        first = admin.describe_topic_partitions([topic], response_partition_limit=3)
        (described,) = first["topics"]
        assert [it["partition_index"] for it in described["partitions"]] == [0, 1, 2]
        assert first["next_cursor"]["partition_index"] == 3
    finally:
        admin.close()


def test_config_resources_are_listed(kafka_python: KafkaPython, topic: str, bootstrap: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        assert topic in admin.list_config_resources(["TOPIC"])["topic"]
    finally:
        admin.close()


def test_the_older_way_to_alter_a_configuration_resets_what_it_does_not_name(
    bootstrap: str, confluent: Confluent
) -> None:
    topic = unique("replaced")
    confluent.create_topic(topic, config={"retention.ms": "1000000"})
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        # kafka-python adds what is set already, so that nothing is reset by accident.
        resource = PythonConfigResource("topic", topic, {"segment.bytes": "2097152"})
        admin.alter_configs([resource], incremental=False)
    finally:
        admin.close()
    config = confluent.config(topic)
    assert (config["segment.bytes"], config["retention.ms"]) == ("2097152", "1000000")


def test_every_client_lists_the_same_topics(judges: list[Judge], topic: str) -> None:
    for judge in judges:
        assert list(judge.describe_topics()[topic].leaders) == [0], judge.name
