"""K2: topic and config administration."""

import pytest

from tests.helpers import eventually, unique
from tests.judges.aio import Aio
from tests.judges.confluent import Confluent
from tests.judges.judge import Admin, Message
from tests.judges.python import KafkaPython


@pytest.mark.parametrize("client", [Confluent, Aio, KafkaPython])
def test_k2_a_client_creates_grows_configures_trims_and_deletes_a_topic(
    bootstrap: str, client: type[Admin]
) -> None:
    admin = client(bootstrap)
    watcher = Confluent(bootstrap)
    topic = unique("k2")
    admin.create_topic(topic, partitions=2, config={"retention.ms": "3600000"})
    admin.create_partitions(topic, 3)
    assert len(watcher.describe_topics()[topic].leaders) == 3
    assert admin.config(topic)["retention.ms"] == "3600000"
    admin.alter_config(topic, "retention.ms", "7200000")
    assert admin.config(topic)["retention.ms"] == "7200000"
    watcher.produce(topic, [Message(b"0"), Message(b"1"), Message(b"2")], partition=2)
    admin.delete_records(topic, before_offset=2, partition=2)
    assert watcher.offset_for_timestamp(topic, 0, partition=2) == 2
    admin.delete_topic(topic)
    eventually(lambda: topic not in watcher.describe_topics())
