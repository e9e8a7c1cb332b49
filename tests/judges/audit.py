"""What the log of coordinators says about a group, read as any consumer may read it."""

import struct
from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from itertools import pairwise

from confluent_kafka import Consumer, KafkaException, TopicPartition

from sapwood.coordinator.assignors import Assignment
from sapwood.coordinator.consumer_member import Current
from sapwood.coordinator.consumer_records import ConsumerRecord, GroupMetadata, Kind, decode
from sapwood.coordinator.group_records import (
    GROUP_KEY,
    OFFSET_KEY,
    group_key,
    group_value,
    offset_key,
    offset_value,
)
from sapwood.coordinator.stored import version_of
from tests.helpers import eventually

OFFSETS_TOPIC = "__consumer_offsets"
TIMEOUT_S = 20


def read_all(bootstrap: str, topic: str = OFFSETS_TOPIC) -> list[tuple[bytes, bytes | None]]:
    """Every record that there is, partition by partition."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "-", "enable.auto.commit": False}
    )
    records = []
    try:
        partitions = consumer.list_topics(topic, TIMEOUT_S).topics[topic].partitions
        for index in partitions:
            place = TopicPartition(topic, index, 0)
            end = eventually(partial(end_of, consumer, place), TIMEOUT_S)[0]
            consumer.assign([place])
            reached = -1
            while reached < end - 1 and not is_read(consumer, topic, index, end):
                message = consumer.poll(1)
                if message is not None and message.error() is None:
                    records.append((message.key() or b"", message.value()))
                    reached = message.offset() or 0
    finally:
        consumer.close()
    return records


def end_of(consumer: Consumer, place: TopicPartition) -> list[int]:
    """Empty while there is no leader to tell."""
    try:
        return [consumer.get_watermark_offsets(place, TIMEOUT_S)[1]]
    except KafkaException:
        return []


def is_read(consumer: Consumer, topic: str, index: int, end: int) -> bool:
    """What consumers aren't shown, as markers, may be at the end."""
    return end == 0 or consumer.position([TopicPartition(topic, index)])[0].offset >= end


class Audit:
    def __init__(self, records: Iterable[tuple[bytes, bytes | None]], group: str) -> None:
        self.commits: dict[int, list[int]] = defaultdict(list)
        """By partition, in the order in which they were committed."""
        self._notes: dict[int, list[str]] = defaultdict(list)
        """What the committer has written beside each."""
        self.generations: list[tuple[int, dict[int, list[str]]]] = []
        """Each that was assigned: its number, and the owners of every partition."""
        self.epochs: list[int] = []
        """In the newer protocol: of the group, in the order in which they were stored."""
        self.shares = 0
        """In the newer protocol: how often a member was given something."""
        self.double_owners: list[str] = []
        """In the newer protocol: who was given what another member still had."""
        held: dict[str, Assignment] = {}
        for key, value in records:
            if version_of(key) == Kind.CURRENT_ASSIGNMENT:
                self._moved(held, decode(key, value), group)
            elif value is None:
                continue
            elif version_of(key) == Kind.GROUP_METADATA:
                self._began(decode(key, value), group)
            elif version_of(key) == OFFSET_KEY and offset_key.decode(key).group == group:
                where = offset_key.decode(key).partition
                stored = offset_value.decode(value)
                self.commits[where].append(stored.offset)
                self._notes[where].append(stored.metadata)
            elif version_of(key) == GROUP_KEY and group_key.decode(key).group == group:
                self._generation(value)

    def _moved(self, held: dict[str, Assignment], record: ConsumerRecord, group: str) -> None:
        if record.group_id != group:
            return
        current = record.value
        held[record.member_id] = current.held if isinstance(current, Current) else frozenset()
        self.shares += bool(held[record.member_id])
        for member_id, others in held.items():
            if member_id != record.member_id and others & held[record.member_id]:
                self.double_owners.append(record.member_id)

    def _began(self, record: ConsumerRecord, group: str) -> None:
        if record.group_id == group and isinstance(record.value, GroupMetadata):
            self.epochs.append(record.value.group_epoch)

    def _generation(self, value: bytes) -> None:
        stored = group_value.decode(value)
        owners: dict[int, list[str]] = defaultdict(list)
        for member in stored.members:
            for partition in assigned_partitions(member.assignment):
                owners[partition].append(member.member_id)
        if owners:
            self.generations.append((stored.generation, owners))

    @property
    def steps_back(self) -> list[str]:
        """From which committed position to which, and what their committers wrote beside them."""
        return [
            f"partition {partition}: {before} ({note}), then {after} ({next_note})"
            for partition, offsets in self.commits.items()
            for (before, note), (after, next_note) in pairwise(
                zip(offsets, self._notes[partition], strict=True)
            )
            if after < before
        ]

    @property
    def is_empty(self) -> bool:
        """Whether nobody ever owned anything, by either protocol: then nothing else says much."""
        return not self.generations and not self.shares

    @property
    def has_one_owner_each(self) -> bool:
        by_generation = (names for _, owners in self.generations for names in owners.values())
        return not self.double_owners and all(len(names) == 1 for names in by_generation)

    @property
    def generations_only_grow(self) -> bool:
        numbers = [number for number, _ in self.generations]
        return numbers == sorted(numbers) and self.epochs == sorted(self.epochs)

    @property
    def faults(self) -> list[str]:
        """What a group must never have done."""
        found = []
        if self.is_empty:
            found.append("nobody ever owned a partition")
        if not self.has_one_owner_each:
            found.append("two owners of a partition")
        if self.steps_back:
            found.append(f"positions went back, {self.steps_back}")
        if not self.generations_only_grow:
            found.append("a generation came twice")
        return found


def assigned_partitions(assignment: bytes) -> list[int]:
    """Of the one topic, in Kafka's format of an assignment."""
    if not assignment:
        return []
    _, topics = struct.unpack_from(">hi", assignment)
    if not topics:
        return []
    (size,) = struct.unpack_from(">h", assignment, 6)
    (count,) = struct.unpack_from(">i", assignment, 8 + size)
    return list(struct.unpack_from(f">{count}i", assignment, 12 + size))
