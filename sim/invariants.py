"""What must always hold, each as a small judge that is told what clients and nodes saw.

A judge raises `Violation`, which ends the run after the event in which it happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from sapwood.client.cluster import TopicPartition
from sapwood.log import CorruptLog, Log
from sapwood.raft import Elected
from sapwood.replica import Partition
from sapwood.wire.batch import BatchHeader, read_header
from sim.loop import Process, SimLoop, SimulationFailed
from sim.node import SimNode


class Violation(SimulationFailed):
    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant


@dataclass(slots=True, eq=False)
class Sent:
    """A record that a client was asked to send, and what it was told about it."""

    producer: str
    number: int
    key: TopicPartition
    value: bytes
    is_open: bool = True
    is_acknowledged: bool = False
    offset: int = -1


class Read(NamedTuple):
    """One batch as some reader got it."""

    key: TopicPartition
    header: BatchHeader
    records: list[tuple[int, bytes]]


class Invariant:
    """Does nothing; each subclass overrides what it wants to know."""

    def sent(self, record: Sent) -> None: ...
    def acknowledged(self, record: Sent) -> None: ...
    def read(self, reader: str, batch: Read) -> None: ...
    def served(self, reader: str, key: TopicPartition, high_watermark: int) -> None: ...
    def after_event(self, process: Process | None) -> None: ...
    def at_end(self, contents: Iterable[Read]) -> None: ...

    def violated(self, what: str) -> Violation:
        return Violation(type(self).__name__, what)


def _name(key: TopicPartition) -> str:
    return f"{key[0]}-{key[1]}"


class OnlyWhatWasSent(Invariant):
    """Every record that anybody reads is, to the last byte, one that was sent there."""

    def __init__(self) -> None:
        self._sent: dict[tuple[TopicPartition, bytes], Sent] = {}

    def sent(self, record: Sent) -> None:
        self._sent[record.key, record.value] = record

    def read(self, reader: str, batch: Read) -> None:
        for offset, value in batch.records:
            if (batch.key, value) not in self._sent:
                what = f"{reader} read {value[:40]!r} at {_name(batch.key)}@{offset}"
                raise self.violated(f"{what}, which nobody sent there")


class OneValuePerOffset(Invariant):
    """Once read or acknowledged at an offset, a record is there for ever, for everybody."""

    def __init__(self) -> None:
        self._values: dict[tuple[TopicPartition, int], tuple[bytes, str]] = {}

    def acknowledged(self, record: Sent) -> None:
        if record.offset >= 0:
            self._meet(record.key, record.offset, record.value, record.producer)

    def read(self, reader: str, batch: Read) -> None:
        for offset, value in batch.records:
            self._meet(batch.key, offset, value, reader)

    def _meet(self, key: TopicPartition, offset: int, value: bytes, who: str) -> None:
        known, by = self._values.setdefault((key, offset), (value, who))
        if known != value:
            raise self.violated(
                f"{_name(key)}@{offset} was {known[:40]!r} to {by} and is {value[:40]!r} to {who}"
            )


class NothingAcknowledgedIsLost(Invariant):
    def __init__(self) -> None:
        self._acknowledged: dict[tuple[TopicPartition, bytes], Sent] = {}

    def acknowledged(self, record: Sent) -> None:
        self._acknowledged[record.key, record.value] = record

    def at_end(self, contents: Iterable[Read]) -> None:
        there = {(it.key, value) for it in contents for _, value in it.records}
        lost = [record for known, record in self._acknowledged.items() if known not in there]
        if lost:
            first = lost[0]
            raise self.violated(
                f"{len(lost)} of {len(self._acknowledged)} acknowledged records are gone, the "
                f"first is {first.value[:40]!r} of {_name(first.key)}@{first.offset}"
            )


class NoDuplicates(Invariant):
    """A record is stored once, and so is each (producer, epoch, sequence)."""

    def at_end(self, contents: Iterable[Read]) -> None:
        values: dict[tuple[TopicPartition, bytes], int] = {}
        sequences: dict[tuple[TopicPartition, int, int, int], int] = {}
        for key, header, records in contents:
            for offset, value in records:
                first = values.setdefault((key, value), offset)
                if first != offset:
                    what = f"{value[:40]!r} is at {_name(key)}@{first} and again at {offset}"
                    raise self.violated(what)
            if header.producer_id < 0 or header.is_control:
                continue  # markers have no sequence
            for n in range(header.record_count):
                identity = (header.producer_id, header.producer_epoch, header.base_sequence + n)
                first = sequences.setdefault((key, *identity), header.base_offset)
                if first != header.base_offset:
                    raise self.violated(
                        f"{_name(key)}: (producer, epoch, sequence) {identity} is in the batch "
                        f"at {first} and again in that at {header.base_offset}"
                    )


class OrderIsKept(Invariant):
    """A producer's records stand in each partition in the order in which it sent them."""

    def __init__(self) -> None:
        self._sent: dict[tuple[TopicPartition, bytes], Sent] = {}

    def sent(self, record: Sent) -> None:
        self._sent[record.key, record.value] = record

    def at_end(self, contents: Iterable[Read]) -> None:
        last: dict[tuple[TopicPartition, str], tuple[int, int]] = {}
        for key, _, records in contents:
            for offset, value in records:
                record = self._sent[key, value]
                before, at = last.get((key, record.producer), (-1, -1))
                if record.number <= before:
                    raise self.violated(
                        f"{_name(key)}@{offset} holds number {record.number} of "
                        f"{record.producer}, but {before} is at {at}"
                    )
                last[key, record.producer] = (record.number, offset)


class HighWatermarkNeverGoesBack(Invariant):
    """Neither as a reader sees it, over restarts and changes of leaders, nor at a replica."""

    def __init__(self, nodes: list[SimNode]) -> None:
        self.trusts_readers = True
        self._nodes = nodes
        self._of_replica: dict[Partition, int] = {}
        self._of_reader: dict[tuple[str, TopicPartition], int] = {}

    def served(self, reader: str, key: TopicPartition, high_watermark: int) -> None:
        known = self._of_reader.get((reader, key), -1)
        if high_watermark < known and self.trusts_readers:
            raise self.violated(f"{reader} saw {known} at {_name(key)}, and then {high_watermark}")
        self._of_reader[reader, key] = high_watermark

    def after_event(self, process: Process | None) -> None:
        for node in self._nodes:
            if process is not node.machine.process:
                continue
            for replica in node.partitions():
                high_watermark, known = replica.high_watermark, self._of_replica.get(replica, -1)
                if high_watermark == known or replica.offline_reason is not None:
                    continue
                where = f"{replica} of {node.machine.name}"
                if high_watermark < known:
                    raise self.violated(f"{where} was at {known} and is at {high_watermark}")
                if high_watermark > (end := replica.log.end_offset):
                    raise self.violated(f"{where} ends at {end}, before {high_watermark}")
                self._of_replica[replica] = high_watermark


class OneLeaderPerTerm(Invariant):
    def __init__(self, nodes: list[SimNode]) -> None:
        self._nodes = nodes
        self._leaders: dict[tuple[bytes, int, int], SimNode] = {}

    def after_event(self, process: Process | None) -> None:
        for node in self._nodes:
            if process is not node.machine.process:
                continue
            for replica in node.partitions():
                if isinstance(replica.group.role, Elected):
                    term = replica.group.term
                    leader = self._leaders.setdefault((*replica.key, term), node)
                    if leader is not node:
                        what = f"{leader.machine.name} and {node.machine.name}"
                        raise self.violated(f"{what} lead {replica} in term {term}")


def _content(log: Log) -> bytes | None:
    """None if it is damaged, which nobody notices before it is read."""
    parts: list[memoryview] = []
    offset = log.start_offset
    try:
        while offset < log.end_offset and (found := log.read(offset, 1 << 40, log.end_offset)):
            parts += found
            offset = read_header(found[-1]).next_offset
    except CorruptLog:
        return None
    return b"".join(parts)


class ReplicasAgree(Invariant):
    """In the end all replicas of a partition hold the same bytes."""

    def __init__(self, nodes: list[SimNode]) -> None:
        self._nodes = nodes

    def at_end(self, contents: Iterable[Read]) -> None:
        stored: dict[tuple[bytes, int], tuple[str, bytes]] = {}
        for node in self._nodes:
            for replica in node.partitions():
                if any(voter.node == node.node_id for voter in replica.voters):
                    found = _content(replica.log)
                    if found is None:
                        continue
                    other, known = stored.setdefault(replica.key, (node.machine.name, found))
                    if known != found:
                        what = f"{replica} differs on {other} and {node.machine.name}"
                        raise self.violated(f"{what}: {len(known)} and {len(found)} bytes")


class Judges(Invariant):
    """All of them together, and the loop that they stop."""

    def __init__(self, loop: SimLoop, invariants: Iterable[Invariant]) -> None:
        self._loop = loop
        self._invariants = list(invariants)
        loop.observer = self.after_event

    def _each(self, told: Callable[[Invariant], None]) -> None:
        for invariant in self._invariants:
            try:
                told(invariant)
            except Violation as violation:
                self._loop.fail(violation)
                raise

    def sent(self, record: Sent) -> None:
        self._each(lambda it: it.sent(record))

    def acknowledged(self, record: Sent) -> None:
        self._each(lambda it: it.acknowledged(record))

    def read(self, reader: str, batch: Read) -> None:
        self._each(lambda it: it.read(reader, batch))

    def served(self, reader: str, key: TopicPartition, high_watermark: int) -> None:
        self._each(lambda it: it.served(reader, key, high_watermark))

    def after_event(self, process: Process | None) -> None:
        if process is not None:
            for invariant in self._invariants:
                invariant.after_event(process)

    def at_end(self, contents: Iterable[Read]) -> None:
        batches = list(contents)
        self._each(lambda it: it.at_end(batches))

    def __iter__(self) -> Iterator[Invariant]:
        return iter(self._invariants)
