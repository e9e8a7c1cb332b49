"""Which offsets to read: what there is, what the options ask for, and cutting it into tasks."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter

from sapwood.client import ErrorCode, KafkaClient, KafkaError
from sapwood.client.admin import NewTopic
from sapwood.client.cluster import Topic, TopicPartition
from sapwood.client.offsets import EARLIEST, LATEST
from sapwood.spark.options import Bound, Options, WrongOption
from sapwood.spark.ranges import Range

Offsets = dict[TopicPartition, int]

COORDINATORS = frozenset({"__consumer_offsets", "__transaction_state"})
"""Their logs, which no pattern means: what is in them is for nobody else, and grows by reading."""

# A node that has just started may not know a topic yet.
_TOPIC_TRIES = 5
_TOPIC_PAUSE_S = 0.2


class MissingTopic(Exception):
    """A topic or partition that was asked for by name isn't there."""


def known_topics(
    client: KafkaClient, names: Iterable[str], bootstrap: str, *, may_lack: bool = False
) -> dict[str, Topic]:
    """The topics of these names; MissingTopic if one of them isn't there and has to be."""
    names = sorted(names)
    for attempt in range(_TOPIC_TRIES):
        if attempt:
            time.sleep(_TOPIC_PAUSE_S)
        found = client.metadata(names).topics
        missing = [name for name in names if name not in found or not found[name].partitions]
        if not missing:
            return found
    if may_lack:
        return found
    raise MissingTopic(
        f"there is no topic {', '.join(missing)} at {bootstrap}: create it, "
        "or look at the name again"
    )


def is_deleted(client: KafkaClient, topic: str) -> bool:
    """By the word of the controller: another node may not have heard of a topic yet."""
    try:
        client.create_topics([NewTopic(topic, 1)], validate_only=True)
    except KafkaError as error:
        if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise
        return False
    return True


class Survey:
    """The driver's view of the cluster."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.client = KafkaClient(options.bootstrap, **options.client)
        self.client.connect()

    def close(self) -> None:
        self.client.close()

    def partitions(self, *, may_lack: bool = False) -> list[TopicPartition]:
        """What the query reads, as of now; MissingTopic if it lacks what was named."""
        options = self._options
        if options.pattern is not None:
            every = self.client.metadata().topics.values()
            chosen = [
                topic
                for topic in every
                if topic.name not in COORDINATORS and re.fullmatch(options.pattern, topic.name)
            ]
            return sorted((topic.name, number) for topic in chosen for number in topic.partitions)
        if options.assigned:
            known = self._named({topic for topic, _ in options.assigned}, may_lack)
            there = {(name, number) for name in known for number in known[name].partitions}
            for topic, partition in set(options.assigned) - there:
                if not may_lack:
                    raise MissingTopic(f"topic {topic} has no partition {partition}")
            return sorted(there & set(options.assigned))
        known = self._named(options.topics, may_lack)
        return sorted((name, number) for name in known for number in known[name].partitions)

    def _named(self, names: Iterable[str], may_lack: bool) -> dict[str, Topic]:
        return known_topics(self.client, names, self._options.bootstrap, may_lack=may_lack)

    def find(self, wanted: Mapping[TopicPartition, int]) -> Offsets:
        """Offsets by time, or by LATEST and EARLIEST; −1 where no record is that young."""
        return {key: found.offset for key, found in self.client.list_offsets(wanted).items()}

    def ends(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return self.find(dict.fromkeys(partitions, LATEST))

    def firsts(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Where the logs begin; at 0 those that were deleted a moment ago."""
        found: Offsets = {}
        for _, keys in itertools.groupby(sorted(partitions), itemgetter(0)):
            asked = dict.fromkeys(keys, EARLIEST)
            try:
                found |= self.find(asked)
            except KafkaError as error:
                if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                found |= dict.fromkeys(asked, 0)
        return found

    def resolve(
        self, bound: Bound, partitions: Sequence[TopicPartition], *, is_end: bool
    ) -> Offsets:
        """The bound as offsets of every partition."""
        which = "ending" if is_end else "starting"
        if bound.everywhere is not None:
            asked = dict.fromkeys(partitions, bound.everywhere)
        else:
            asked = dict(bound.by_partition)
            if asked.keys() != set(partitions):
                raise WrongOption(
                    f"{which}Offsets must name every partition that is read, and no other: it has "
                    f"{_shown(asked)}, read are {_shown(partitions)}"
                )
        if bound.kind == "time":
            return self._at_times(asked, is_end)
        looked_up = {key: offset for key, offset in asked.items() if offset < 0}
        given = {key: offset for key, offset in asked.items() if offset >= 0}
        self._check_given(given, which)
        return {**given, **self.find(looked_up)}

    def _at_times(self, asked: Offsets, is_end: bool) -> Offsets:
        found = self.find(asked)
        none = [key for key, offset in found.items() if offset < 0]
        if none and not is_end and not self._options.start_may_be_end:
            raise WrongOption(
                f"no record of {_shown(none)} is as young as the time to start at: choose another "
                "one, or set startingOffsetsByTimestampStrategy to latest"
            )
        return {**found, **self.ends(none)}

    def _check_given(self, given: Offsets, which: str) -> None:
        ends = self.ends(given)
        for key, offset in given.items():
            if offset > ends[key] and not self._options.may_lose:
                raise WrongOption(
                    f"{which}Offsets: {_shown([key])} ends at {ends[key]}, before the offset "
                    f"{offset} that was asked for"
                )
            given[key] = min(offset, ends[key])


def split(ranges: Sequence[Range], options: Options) -> list[Range]:
    """The tasks: a range for each partition, or finer where the options ask for it."""
    ranges = [each for each in ranges if each.stop > each.start]
    total = sum(each.stop - each.start for each in ranges)
    tasks = []
    for each in ranges:
        size = each.stop - each.start
        parts = 1
        if options.most_per_task is not None:
            parts = -(-size // options.most_per_task)
        if options.least_tasks is not None and options.least_tasks > len(ranges):
            parts = max(parts, -(-size * options.least_tasks // total))
        parts = min(parts, size)
        cuts = [each.start + size * number // parts for number in range(parts + 1)]
        tasks += [each._replace(start=start, stop=stop) for start, stop in itertools.pairwise(cuts)]
    return tasks


def admit(start: Offsets, end: Offsets, most: int) -> Offsets:
    """No more than about `most` records, each partition in proportion to what it has."""
    total = sum(max(0, offset - start.get(key, 0)) for key, offset in end.items())
    if total <= most:
        return end
    admitted = {}
    for key, offset in end.items():
        first = start.get(key, 0)
        # At least one, so that a small partition isn't held up by large ones for ever.
        share = max(1, (offset - first) * most // total)
        admitted[key] = min(offset, first + share)
    return admitted


def to_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """As Spark's Kafka source writes offsets into checkpoints."""
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def from_json(offsets: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {
        (topic, int(partition)): offset
        for topic, partitions in offsets.items()
        for partition, offset in partitions.items()
    }


def _shown(keys: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{topic}-{partition}" for topic, partition in sorted(keys)) or "none"
