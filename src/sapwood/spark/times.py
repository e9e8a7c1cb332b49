"""Append times beside the records, and batches that end at a time that is over for all partitions.

The cluster's clock gives every batch of records a time, later than that of the batch before it in
its partition. Leaders tell which times are closed: nothing of them will turn up any more. Where all
partitions are read up to one closed time, and on to the next, what was read before precedes what is
read later, in the order of (append time, topic id, partition, offset).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sapwood.client import KafkaClient
from sapwood.client.cluster import TopicPartition
from sapwood.client.procedures import wait_for
from sapwood.client.times import Asked, Timed, TopicTimes, Wanted
from sapwood.spark.planning import Offsets, admit
from sapwood.wire.private.times import NO_TIME, unpack_spans

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("appendTime", "topicId")

# How long a leader may wait for a time to be closed before it answers.
_CLOSING_MS = 500
# What was there when somebody asked is closed soon, but for what open transactions hold up.
_PATIENCE_S = 10.0


class Closed(NamedTuple):
    """Of these partitions, and of those that their topics will ever get, nothing that has this
    time or an earlier one is yet to come."""

    time: int
    partitions: Sequence[TopicPartition]


class AppendTimes:
    """What the cluster tells of some topics. Those that aren't there have no partition yet."""

    def __init__(self, client: KafkaClient, topics: Iterable[str]) -> None:
        self._client = client
        self._topics = tuple(topics)

    def closed(self) -> Closed:
        """By now, or a moment later. On the client's only lane: nobody else asks it anything."""
        wanted = Wanted(self._client.core.cluster_clock.last, _CLOSING_MS)
        listed = self._list(wanted)
        keys = [(it, n) for it, (_, count) in listed.topics.items() for n in range(count)]
        found = self._ask(dict.fromkeys(keys, Asked()), wanted) if keys else {}
        for (topic, _), timed in found.items():
            if timed.topic_id != listed.topics[topic][0]:
                return Closed(NO_TIME, keys)  # it was made anew between two questions
        times = (timed.closed_time for timed in found.values())
        return Closed(min([listed.closed_time, *times]), keys)

    def closed_by_now(self) -> Closed:
        """So that it has what was there before this was called, but for what waits for the end of
        a transaction."""
        self.closed()  # which tells how late it is
        now = self._client.core.cluster_clock.last
        deadline_s = time.monotonic() + _PATIENCE_S
        while True:
            found = self.closed()
            if found.time >= now or time.monotonic() > deadline_s:
                return found

    def ends(self, closed: Closed) -> Offsets:
        """Where the records that are younger than that begin."""
        if closed.time == NO_TIME:
            return dict.fromkeys(closed.partitions, 0)
        return self._client.offsets_after(closed.partitions, closed.time)

    def admit(self, start: Offsets, end: Offsets, most: int) -> Offsets:
        """No more than about `most` records: up to an earlier time, the same in all partitions."""
        admitted = admit(start, end, most)
        cut = {
            key: max(start.get(key, 0), offset - 1)
            for key, offset in admitted.items()
            if offset < end[key]
        }
        times = [self._time_at(key, offset, end[key]) for key, offset in cut.items()]
        earliest = min((it for it in times if it is not None), default=None)
        if earliest is None:
            return end
        found = self.ends(Closed(earliest, list(end)))
        return {key: max(start.get(key, 0), min(it, found[key])) for key, it in end.items()}

    def _time_at(self, key: TopicPartition, offset: int, end: int) -> int | None:
        """Of the batch there, or of the next one: compaction leaves gaps."""
        for until in (offset + 1, end):
            if spans := self._ask({key: Asked(offset, until)}, Wanted())[key].spans:
                return unpack_spans(spans)[0].time
        return None

    def _list(self, wanted: Wanted) -> TopicTimes:
        client = self._client
        return client.run(wait_for(client.core.topic_times(self._topics, wanted, client.now_ms())))

    def _ask(
        self, asked: dict[TopicPartition, Asked], wanted: Wanted
    ) -> dict[TopicPartition, Timed]:
        client = self._client
        return client.run(wait_for(client.core.append_times(asked, wanted, client.now_ms())))


def with_times(
    client: KafkaClient, topic: str, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The records of a partition with two more columns: when they were appended, and the id of
    their topic, which decides between those of the same time."""
    import pyarrow as pa

    from sapwood.spark.timing import with_append_time

    topic_id = client.metadata([topic]).topics[topic].topic_id
    for batch in batches:
        timed = with_append_time(client, batch)
        if timed.column(timed.num_columns - 1).null_count:
            # Compaction or retention took some of them meanwhile: no reader gets those any more.
            timed = timed.filter(timed.column(timed.num_columns - 1).is_valid())
        ids = pa.repeat(pa.scalar(topic_id, pa.binary()), timed.num_rows)
        schema = pa.schema([*batch.schema, (COLUMNS[0], pa.int64()), (COLUMNS[1], pa.binary())])
        yield pa.RecordBatch.from_arrays([*timed.columns, ids], schema=schema)
