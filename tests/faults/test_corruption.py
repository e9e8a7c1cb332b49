"""Files that changed behind the node's back: say so, serve nothing unchecked, delete nothing."""

from pathlib import Path

import pytest

import sapwood
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct, decode_response
from sapwood.wire.records import encode_batch
from tests.faults.raw import Wire, produce, request
from tests.gateway.rest import Gateway
from tests.helpers import port_of
from tests.judges.confluent import Confluent
from tests.judges.judge import Message, RefusedError

KAFKA_STORAGE_ERROR = 56
MARKER_BYTES = 81
"""A log begins with its first leader's marker, which nobody is ever sent."""
MESSAGES = [Message(b"record %04d " % number * 20) for number in range(500)]


def segment(cluster: sapwood.Cluster, partition: str) -> Path:
    (path,) = (cluster.data_dir / "node-0" / "logs").glob(f"{partition}.*/*.log")
    return path


def written(data: bytes | bytearray) -> int:
    """Where the records end and preallocated zeros begin; a record's own last byte is a zero."""
    return len(data.rstrip(b"\0")) + 1


def status(cluster: sapwood.Cluster) -> Struct:
    with Wire(port_of(cluster.bootstrap)) as wire:
        answer = wire.ask(request(Api.NODE_STATUS, 0, b"\0"))
    assert answer is not None
    return decode_response(Api.NODE_STATUS, 0, answer, 5)


@pytest.fixture
def judge(cluster: sapwood.Cluster) -> Confluent:
    """Two partitions with fifty batches each, stopped and so known to be durable."""
    judge = Confluent(cluster.bootstrap)
    judge.create_topic("hurt", partitions=2)
    for partition in (0, 1):
        for start in range(0, len(MESSAGES), 10):
            judge.produce("hurt", MESSAGES[start : start + 10], partition=partition)
    return judge


@pytest.mark.parametrize("place", [0.0, 0.3, 0.6, 0.999])
def test_a_flipped_bit_takes_its_partition_offline_and_no_other(
    cluster: sapwood.Cluster, judge: Confluent, place: float
) -> None:
    assert cluster.stop() == 0
    path = segment(cluster, "hurt-0")
    data = bytearray(path.read_bytes())
    end = written(data)
    data[MARKER_BYTES + int((end - 1 - MARKER_BYTES) * place)] ^= 0x10
    path.write_bytes(data)
    cluster.restart()

    with pytest.raises((RefusedError, TimeoutError)):
        judge.consume("hurt", len(MESSAGES), timeout_s=3)
    (offline,) = status(cluster).offline_partitions
    assert (offline.topic, offline.partition) == ("hurt", 0)
    assert path.name in offline.reason
    with Gateway(cluster.bootstrap) as gateway:
        metrics = gateway.get("/metrics").text.splitlines()
    assert "kafka_server_replicamanager_offlinereplicacount 1.0" in metrics
    with Wire(port_of(cluster.bootstrap)) as wire:
        batch = bytes(encode_batch([(0, None, b"too late", ())]))
        assert produce(wire, "hurt", batch) == KAFKA_STORAGE_ERROR
    assert path.read_bytes()[:end] == bytes(data[:end])

    assert [it.value for it in judge.consume("hurt", 500, partition=1)] == [
        it.value for it in MESSAGES
    ]
    judge.produce("hurt", MESSAGES[:1], partition=1)


def test_a_segment_that_lost_its_end_takes_its_partition_offline(
    cluster: sapwood.Cluster, judge: Confluent
) -> None:
    assert cluster.stop() == 0
    path = segment(cluster, "hurt-0")
    data = path.read_bytes()
    path.write_bytes(data[: written(data) // 2])
    cluster.restart()
    with pytest.raises((RefusedError, TimeoutError)):
        judge.consume("hurt", 500, timeout_s=3)
    (offline,) = status(cluster).offline_partitions
    assert (offline.topic, offline.partition) == ("hurt", 0)
    assert len(judge.consume("hurt", 500, partition=1)) == 500


def test_a_torn_write_after_the_last_acknowledged_record_is_cut(
    cluster: sapwood.Cluster, judge: Confluent
) -> None:
    cluster.kill()
    path = segment(cluster, "hurt-0")
    data = path.read_bytes()
    torn = data[: written(data) // 10 - 7]  # the beginning of a write that never came to its end
    path.write_bytes(data[: written(data)] + torn)
    cluster.restart()
    assert status(cluster).offline_partitions == []
    assert [it.value for it in judge.consume("hurt", 500)] == [it.value for it in MESSAGES]
    judge.produce("hurt", [Message(b"after")])
    assert judge.consume("hurt", 1, offset=500)[0].value == b"after"
