"""Many partitions in one order: by append time, then topic id, partition and offset.

Append times are readings of the cluster's clock. A message is handed out when nothing that comes
before it can turn up any more, in any partition, even one that is added later: each leader, and the
controller for the list of partitions, tells which times are closed. So every reader gets the
same sequence, and a partition where nothing happens holds nobody up. An open transaction does, up
to its end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeVar

from sapwood.client.cluster import TopicPartition
from sapwood.client.core import ClientCore
from sapwood.client.effects import Ticket
from sapwood.client.errors import TopicGone, is_retriable
from sapwood.client.fetcher import ConsumedRecord, read_records
from sapwood.client.offsets import EARLIEST
from sapwood.client.procedures import Procedure, Wait, wait_for
from sapwood.client.times import CLOSING_MS, Asked, Timed, TopicTimes, Wanted
from sapwood.wire.errors import KafkaError
from sapwood.wire.private.times import NO_TIME, Span, unpack_spans

PAUSE_MS = 20
IDLE_MS = 1_000
"""How often the list of partitions is looked at while there is nothing to hand out."""
START_MS = 1_000
"""How long a start waits for open transactions to end: if they don't, it is before them."""
_NO_END = 2**63 - 1

T = TypeVar("T")
MergeStart = Literal["now", "earliest"]


class MergePosition(NamedTuple):
    """A place in the order. Written down it is text, to go on from later, anywhere."""

    time: int
    topic_id: bytes
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.time}.{self.topic_id.hex()}.{self.partition}.{self.offset}"

    @classmethod
    def parse(cls, text: str) -> MergePosition:
        try:
            time, topic_id, partition, offset = text.split(".")
            return cls(int(time), bytes.fromhex(topic_id), int(partition), int(offset))
        except ValueError:
            raise ValueError(
                f'{text!r} is no place to start: "now", "earliest", or a position that merged gave'
            ) from None


BEGINNING = MergePosition(NO_TIME, b"", -1, -1)


def end_of(time: int) -> MergePosition:
    """Behind everything of that time."""
    return MergePosition(time, b"\xff" * 17, -1, -1)


class Placed(NamedTuple):
    record: ConsumedRecord
    position: MergePosition


@dataclass(slots=True)
class _Partition:
    topic_id: bytes
    next_offset: int = EARLIEST
    """Behind all that was fetched; EARLIEST until something was."""
    untimed: deque[ConsumedRecord] = field(default_factory=deque)
    """Fetched, but it isn't known yet when it was appended."""
    untimed_from: int = 0
    timed: deque[Placed] = field(default_factory=deque)
    known_until: int = NO_TIME
    """All that was appended until then is in `timed`, or was handed out."""
    held_bytes: int = 0
    is_paused: bool = False

    def question(self) -> Asked:
        end = max(self.next_offset, 0)
        return Asked(self.untimed_from if self.untimed else end, end)


class _Round(NamedTuple):
    """Questions that were asked together."""

    asked: dict[TopicPartition, Asked]
    timing: Ticket[dict[TopicPartition, Timed]]
    listing: Ticket[TopicTimes]


class _Joining(NamedTuple):
    """Partitions that were not known, and where to begin to read them."""

    partitions: dict[TopicPartition, _Partition]
    finding: Ticket[dict[TopicPartition, Timed]] | None
    listed_until: int


class Merger:
    """Partitions are read, timed and merged as long as somebody asks for records."""

    def __init__(
        self,
        core: ClientCore,
        clock: Callable[[], float],
        topics: Iterable[str],
        start: MergeStart | str,
        *,
        stops: bool = False,
    ) -> None:
        """`stops`: at what there is when it starts."""
        self._core = core
        self._clock = clock
        self._topics = list(dict.fromkeys(topics))
        if not self._topics:
            raise ValueError("merge what? name a topic")
        self._start = start
        self._stops = stops
        self._stop_time: int | None = None
        self.position = BEGINNING
        """Of the last message that was handed out."""
        if start not in ("now", "earliest"):
            self.position = MergePosition.parse(start)
        self._lane = core.new_lane()
        self._fetcher = core.fetch({}, {}, "earliest")
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._ids: dict[str, bytes] = {}
        self._ready: deque[Placed] = deque()
        self._listed_until = NO_TIME
        self._round: _Round | None = None
        self._joining: _Joining | None = None

    def begin(self) -> Procedure[None]:
        """Find out where to start: what is appended once this is over comes after that."""
        for topic in self._topics:
            if self._core.usable_topic(topic, None) is None:
                yield from wait_for(self._core.await_topic(topic, None, self._clock()))
        if self._start == "now" or self._stops:
            now = yield from self._end_of_order()
            if self._start == "now":
                self.position = end_of(now)
            if self._stops:
                self._stop_time = now

    def take(self, most: int, until_ms: float) -> Procedure[list[ConsumedRecord]]:
        """At least one unless the time is up, or the end is reached; `position` follows."""
        while not self._ready and not self.is_at_end:
            self._accept()
            yield from self._tick(until_ms)
            if self._ready or self.is_at_end or self._clock() >= until_ms:
                break
            yield self._rest(until_ms)
        found: list[ConsumedRecord] = []
        while self._ready and len(found) < most:
            record, self.position = self._ready.popleft()
            found.append(record)
        return found

    @property
    def is_at_end(self) -> bool:
        stop = self._stop_time
        return stop is not None and not self._ready and self._frontier() >= stop

    def close(self) -> None:
        self._core.stop_fetching(self._fetcher, self._clock())
        self._core.close_lane(self._lane, self._clock())

    def _end_of_order(self) -> Procedure[int]:
        """What the clock shows anywhere, once that is past everywhere: whoever leads, now or later,
        appends after it."""
        core, lane = self._core, self._lane
        deadline_ms = self._clock() + START_MS
        wanted = 0
        while True:
            ask = Wanted(wanted, CLOSING_MS, lane)
            listed = yield from wait_for(core.topic_times(self._topics, ask, self._clock()))
            keys = [(it, n) for it, (_, count) in listed.topics.items() for n in range(count)]
            asked = dict.fromkeys(keys, Asked())
            timed = yield from wait_for(core.append_times(asked, ask, self._clock()))
            closed = min([listed.closed_time, *(it.closed_time for it in timed.values())])
            if wanted and (closed >= wanted or (self._clock() >= deadline_ms and closed >= 0)):
                return min(closed, wanted)
            wanted = wanted or core.cluster_clock.last or closed

    # -- reading -----------------------------------------------------------------------------

    def _rest(self, until_ms: float) -> Wait:
        """Until there is more to do."""
        waits = any(it.untimed or it.timed for it in self._partitions.values())
        pause_ms = PAUSE_MS if waits or self._stop_time is not None else IDLE_MS
        return Wait((self._fetcher.arrival(),), min(until_ms, self._clock() + pause_ms))

    def _accept(self) -> None:
        """Take what has been fetched."""
        while (chunk := self._fetcher.take()) is not None:
            key = chunk.topic, chunk.partition
            partition = self._partitions.get(key)
            if partition is None:
                continue
            if not partition.untimed:
                partition.untimed_from = chunk.offset
            partition.untimed.extend(read_records(chunk))
            partition.next_offset = chunk.next_offset
            partition.held_bytes += len(chunk.data)
            # One partition must not fill all memory while another one is waited for.
            limit = self._core.config.fetch_buffer_bytes // max(4, len(self._partitions))
            if partition.held_bytes > limit and not partition.is_paused:
                partition.is_paused = True
                self._fetcher.release(key)

    def _resume(self) -> None:
        for key, partition in self._partitions.items():
            if not (partition.untimed or partition.timed):
                partition.held_bytes = 0
                if partition.is_paused:
                    partition.is_paused = False
                    self._fetcher.seek(key, partition.next_offset)

    # -- timing ------------------------------------------------------------------------------

    def _tick(self, until_ms: float) -> Procedure[None]:
        """Ask which times are closed, and when what was fetched was appended; hand out what may be.

        What isn't answered in time is waited for the next time; what will pass is asked again.
        """
        try:
            if self._joining is None:
                yield from self._ask(until_ms)
            if self._joining is not None:
                yield from self._join(self._joining, until_ms)
        except KafkaError as error:
            self._round = self._joining = None
            if not is_retriable(int(error.code)):
                raise
        self._release()
        self._resume()

    def _ask(self, until_ms: float) -> Procedure[None]:
        core = self._core
        if self._round is None:
            now = self._clock()
            wanted = Wanted(core.cluster_clock.last, CLOSING_MS, self._lane)
            asked = {key: it.question() for key, it in self._partitions.items()}
            timing = core.append_times(asked, wanted, now)
            self._round = _Round(asked, timing, core.topic_times(self._topics, wanted, now))
        asked, timing, listing = self._round
        if not (yield from _done(listing, until_ms)):
            return
        self._check_ids(listing.result())
        if not (yield from _done(timing, until_ms)):
            return
        self._round = None
        for key, answer in timing.result().items():
            self._time(key, self._partitions[key], asked[key], answer)
        self._list(listing.result())

    def _time(
        self, key: TopicPartition, partition: _Partition, asked: Asked, answer: Timed
    ) -> None:
        if answer.topic_id != partition.topic_id:
            return  # of a topic that was made anew, or unknown there: the list will tell
        spans = unpack_spans(answer.spans)
        firsts = [it.first_offset for it in spans]
        limit = min(asked.end, answer.next_offset, answer.closed_offset)
        untimed = partition.untimed
        while untimed and untimed[0].offset < limit:
            record = untimed.popleft()
            span = _span_of(spans, firsts, record.offset)
            if span is not None:  # else compaction or retention has taken it meanwhile
                place = MergePosition(span.time, partition.topic_id, key[1], record.offset)
                partition.timed.append(Placed(record, place))
        partition.untimed_from = max(partition.untimed_from, limit)
        known_until = spans[-1].time if spans else NO_TIME
        has_all = answer.next_offset >= asked.end
        if has_all and answer.following_offset >= answer.closed_offset:
            known_until = max(known_until, answer.closed_time)
        partition.known_until = max(partition.known_until, known_until)

    # -- which partitions there are ----------------------------------------------------------

    def _check_ids(self, listed: TopicTimes) -> None:
        for topic, (topic_id, count) in listed.topics.items():
            if count < 0 or self._ids.setdefault(topic, topic_id) != topic_id:
                raise TopicGone(f"topic {topic} was deleted: merge what is left, or what is new")

    def _list(self, listed: TopicTimes) -> None:
        """Take up partitions that weren't known. Until each is, the list counts for nothing."""
        added: dict[TopicPartition, _Partition] = {}
        for topic, (topic_id, count) in listed.topics.items():
            for index in range(count):
                if (topic, index) not in self._partitions:
                    added[topic, index] = _Partition(topic_id)
        finding = None
        if added and self.position.time > 0:
            # From the first batch of that time on; what lies before the position is left out.
            asked = dict.fromkeys(added, Asked(after=self.position.time - 1))
            finding = self._core.append_times(asked, Wanted(lane=self._lane), self._clock())
        self._joining = _Joining(added, finding, listed.closed_time)

    def _join(self, joining: _Joining, until_ms: float) -> Procedure[None]:
        if joining.finding is not None:
            if not (yield from _done(joining.finding, until_ms)):
                return
            for key, answer in joining.finding.result().items():
                joining.partitions[key].next_offset = answer.after_offset
        self._joining = None
        for key, partition in joining.partitions.items():
            self._partitions[key] = partition
            self._fetcher.seek(key, partition.next_offset)
        self._listed_until = max(self._listed_until, joining.listed_until)

    # -- handing out -------------------------------------------------------------------------

    def _frontier(self) -> int:
        """Nothing of that time or before can turn up any more."""
        known = (it.known_until for it in self._partitions.values())
        return min(self._listed_until, min(known, default=_NO_END))

    def _release(self) -> None:
        """What is of closed times only, in order."""
        until = self._frontier()
        if self._stop_time is not None:
            until = min(until, self._stop_time)
        found: list[Placed] = []
        for partition in self._partitions.values():
            timed = partition.timed
            while timed and timed[0].position.time <= until:
                found.append(timed.popleft())
        found.sort(key=lambda it: it.position)
        last = self._ready[-1].position if self._ready else self.position
        self._ready.extend(it for it in found if it.position > last)


def _done(ticket: Ticket[T], until_ms: float) -> Procedure[bool]:
    if not ticket.done:
        yield Wait((ticket,), until_ms)
    return ticket.done


def _span_of(spans: list[Span], firsts: list[int], offset: int) -> Span | None:
    at = bisect_right(firsts, offset) - 1
    return spans[at] if at >= 0 and offset <= spans[at].last_offset else None
