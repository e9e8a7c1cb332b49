"""A disk that fills up, made of a small tmpfs."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import sapwood
from chaos.disk import SmallDisk
from tests.helpers import MIB, eventually
from tests.judges.confluent import Confluent
from tests.judges.judge import Message, RefusedError

KAFKA_STORAGE_ERROR = 56
DISK_MIB = 96
VALUE = bytes(100_000)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = SmallDisk(tmp_path / "disk", DISK_MIB)
    yield tmp_path / "disk"
    disk.close(keep=False)


@pytest.fixture
def full(small_disk: Path) -> Iterator["FullDisk"]:
    with sapwood.Cluster(data_dir=small_disk / "cluster") as cluster:
        yield FullDisk(small_disk, cluster)


class FullDisk:
    """A node on a small disk, and a ballast that can be thrown off to make room."""

    def __init__(self, place: Path, cluster: sapwood.Cluster) -> None:
        self.cluster = cluster
        self.judge = Confluent(cluster.bootstrap)
        self.ballast = place / "ballast"
        self.ballast.write_bytes(bytes(24 * MIB))
        self.judge.create_topic("filling", config={"segment.bytes": str(8 * MIB)})
        self.acknowledged = 0

    def write(self) -> None:
        """One record, without the client's own patience."""
        self.judge.produce("filling", [Message(b"%06d" % self.acknowledged + VALUE)], retries=0)
        self.acknowledged += 1

    def fill_up(self) -> int:
        """Write until it is refused; the error's code."""
        for _ in range(DISK_MIB * MIB // len(VALUE)):
            try:
                self.write()
            except RefusedError as refusal:
                return refusal.code
        pytest.fail("more was acknowledged than the disk can hold")

    def read(self) -> list[bytes]:
        received = self.judge.consume("filling", self.acknowledged)
        return [(it.value or b"")[:6] for it in received]

    def expected(self) -> list[bytes]:
        return [b"%06d" % number for number in range(self.acknowledged)]


def test_a_full_disk_refuses_writes_keeps_what_was_acknowledged_and_recovers_when_there_is_room(
    full: FullDisk,
) -> None:
    assert full.fill_up() == KAFKA_STORAGE_ERROR
    assert full.read() == full.expected()

    full.ballast.unlink()

    def writes_again() -> bool:
        try:
            full.write()
        except RefusedError:
            return False
        return True

    eventually(writes_again)
    full.write()
    assert full.read() == full.expected()


def test_a_client_that_retries_only_waits_until_there_is_room(full: FullDisk) -> None:
    assert full.fill_up() == KAFKA_STORAGE_ERROR
    patient = threading.Thread(target=full.judge.produce, args=("filling", [Message(VALUE)]))
    patient.start()
    full.ballast.unlink()
    patient.join(60)
    assert len(full.judge.consume("filling", full.acknowledged + 1)) == full.acknowledged + 1


def test_a_node_that_is_killed_on_a_full_disk_comes_back_with_all_it_acknowledged(
    full: FullDisk,
) -> None:
    assert full.fill_up() == KAFKA_STORAGE_ERROR
    full.cluster.kill()
    full.cluster.restart()
    assert full.read() == full.expected()
    full.ballast.unlink()
    full.cluster.kill()
    full.cluster.restart()
    full.write()
    assert full.read() == full.expected()


def test_other_topics_and_administration_answer_while_the_disk_is_full(full: FullDisk) -> None:
    assert full.fill_up() == KAFKA_STORAGE_ERROR
    assert "filling" in full.judge.describe_topics()
    assert full.judge.config("filling")["segment.bytes"] == str(8 * MIB)
