"""Coordinators: machines fed from the partitions that this node leads, and their effects.

A machine's state changes at the append; whatever leaves it (answers, errors, and what it asks to
be done) is held until the high watermark has passed the end of the log of that moment, so nothing
that shows could still be lost. A failed append, or the loss of the lead, ends a shard: all who
wait are sent to look for the coordinator again, and the log gives a new one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sapwood.coordinator.effects import Answer, Append, Effect, Machine, TopicFacts
from sapwood.coordinator.sharding import shard_of
from sapwood.metadata.image import Image, Topic
from sapwood.replica import Partition, Replicas
from sapwood.wire.batch import BatchHeader, iterate, read_header
from sapwood.wire.codec import Struct
from sapwood.wire.control import decode_transaction_marker
from sapwood.wire.errors import ErrorCode, KafkaError
from sapwood.wire.records import Record, decode_batch, encode_batch

logger = logging.getLogger(__name__)

LOAD_BYTES = 128 << 10
"""Replayed at a time: a few milliseconds, after which others have their turn."""
RELOAD_S = 1.0
"""After a failure that may happen again at once."""
LATE_S = 0.5

M = TypeVar("M", bound=Machine)
GroupKey = tuple[bytes, int]


@dataclass(slots=True, frozen=True)
class Kind(Generic[M]):
    """What the shards of one internal topic are."""

    topic: str
    machine: Callable[[int], M]
    """Makes the machine of a partition, before anything is replayed."""
    carry_out: Callable[[Shard[M], Effect], None] | None = None
    """Does what a machine asks for beyond appending and answering, once that is committed."""


class Shard(Generic[M]):
    """One partition's machine for as long as this node leads it in one epoch."""

    def __init__(
        self, kind: Kind[M], partition: Partition, now_ms: Callable[[], int], on_end: OnEnd
    ) -> None:
        self.kind = kind
        self.partition = partition
        self.epoch = partition.leader_epoch
        self.is_ready = False
        self._machine = kind.machine(partition.index)
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        # The wall's time at first, but never back and never in leaps: sessions depend on it.
        self._began_ms = now_ms() - self._loop.time() * 1000
        self._position = partition.log.start_offset
        self._held: deque[tuple[int, Callable[[], None]]] = deque()
        self._is_stepping = False
        self._waiting: dict[asyncio.Future[Struct], None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at_ms = float("inf")
        self._news = asyncio.Event()
        self._ended = False
        partition.listen(self)
        self._loading = asyncio.ensure_future(self._load())

    def __str__(self) -> str:
        return f"the coordinator of {self.partition} in epoch {self.epoch}"

    @property
    def waiting(self) -> int:
        """How many requests have no answer yet."""
        return len(self._waiting)

    def now_ms(self) -> int:
        return int(self._began_ms + self._loop.time() * 1000)

    # -- questions ---------------------------------------------------------------------------

    async def ask(self, question: Callable[[M, object, int], Sequence[Effect]]) -> Struct:
        """What the machine answers under the token that `question` is given.

        `KafkaError` if it refuses, or if this ceases to be the coordinator before.
        """
        self.check()
        token: asyncio.Future[Struct] = self._loop.create_future()
        self._waiting[token] = None
        try:
            self._step(lambda now_ms: question(self._machine, token, now_ms))
        except KafkaError as error:
            self._hold(lambda refusal=error: self._settle_token(token, refusal))  # type: ignore[misc]
            self._release()
        return await token

    def tell(self, news: Callable[[M, int], Sequence[Effect]]) -> None:
        """Something that nobody waits for."""
        self.check()
        self.follow(news)

    def follow(self, news: Callable[[M, int], Sequence[Effect]]) -> None:
        """Something that has happened, whether this may answer now or not: a leader that hears of
        no majority for a while keeps its shard, which would never learn of it later."""
        self._step(lambda now_ms: news(self._machine, now_ms))

    def check(self) -> None:
        """Raises what a client is to be told if this can't answer."""
        try:
            self.partition.check_newest()
        except KafkaError as error:
            raise not_coordinator() from error
        if self._ended or self.partition.leader_epoch != self.epoch:
            raise not_coordinator()
        if not self.is_ready:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self} is being loaded")

    # -- effects -----------------------------------------------------------------------------

    def _step(self, news: Callable[[int], Sequence[Effect]]) -> None:
        try:
            self._is_stepping = True
            for effect in news(self.now_ms()):
                if isinstance(effect, Append):
                    self._append(effect)
                else:
                    self._hold(lambda it=effect: self._carry_out(it))  # type: ignore[misc]
        except KafkaError:
            raise
        except _AppendFailed as error:
            logger.warning("%s is loaded anew: %s", self, error)
            self.end(again_after_s=RELOAD_S)
            return
        except Exception:
            # What it has changed may be half of a change: the log has what really happened.
            logger.exception("%s failed and is loaded anew", self)
            self.end(again_after_s=RELOAD_S)
            return
        finally:
            self._is_stepping = False
        self._release()
        self._set_timer()

    def _append(self, effect: Append) -> None:
        partition = self.partition
        if not effect.records:
            return
        now_ms = self.now_ms()
        producer_id, producer_epoch = effect.producer or (-1, -1)
        batch = memoryview(
            encode_batch(
                [(now_ms, key, value, ()) for key, value in effect.records],
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                transactional=effect.producer is not None,
            )
        )
        if self._ended or partition.leader_epoch != self.epoch:
            raise _AppendFailed("it has another leader")
        try:
            partition.append(batch, read_header(batch), now_ms, -1, None)
        except KafkaError as error:
            raise _AppendFailed(str(error)) from error

    def _hold(self, act: Callable[[], None]) -> None:
        self._held.append((self.partition.log.end_offset, act))

    def _release(self) -> None:
        if self._is_stepping:
            return  # what an effect leads to comes after all effects of this step
        while self._held and self._held[0][0] <= self.partition.high_watermark:
            self._held.popleft()[1]()

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Answer):
            self._settle_token(effect.token, effect.message)
        elif self.kind.carry_out is not None:
            try:
                self.kind.carry_out(self, effect)
            except Exception:
                logger.exception("%s could not do %s", self, type(effect).__name__)

    def _settle_token(self, token: object, outcome: Struct | KafkaError) -> None:
        if not isinstance(token, asyncio.Future) or token.done():
            return
        self._waiting.pop(token, None)
        if isinstance(outcome, KafkaError):
            token.set_exception(outcome)
        else:
            token.set_result(outcome)

    # -- time --------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        """Too early is no harm: it looks and sets the timer again."""
        wake_at_ms = self._machine.wake_at_ms
        if not self._ended and wake_at_ms < self._wakes_at_ms:
            self._wakes_at_ms = wake_at_ms
            self._call_after(max(0.0, (wake_at_ms - self.now_ms()) / 1000))

    def _call_after(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_s, self._wake, self._loop.time() + delay_s)

    def _wake(self, due: float) -> None:
        if self._loop.time() - due > LATE_S:
            # This node was asleep: signs of life that came meanwhile are yet to be read.
            self._wakes_at_ms = 0
            self._call_after(RELOAD_S)
            return
        self._wakes_at_ms = float("inf")
        try:
            self.tell(lambda machine, now_ms: machine.tick(now_ms))
        except KafkaError:
            # Not the leader any more, or asleep for a while: whoever leads decides what is due.
            if not self._ended:
                self._call_after(RELOAD_S)

    # -- the log -----------------------------------------------------------------------------

    def committed(self, partition: Partition, size_bytes: int) -> None:
        """The high watermark has moved, or the partition is led by somebody else, or gone."""
        if not partition.leads or partition.leader_epoch != self.epoch:
            self.end()
            return
        self._news.set()
        self._release()

    async def _load(self) -> None:
        """Replay the log to its very end: all that was appended, once it is committed."""
        try:
            while self._position < self.partition.log.end_offset:
                if self._position >= self.partition.high_watermark:
                    self._news.clear()
                    await self._news.wait()
                    continue
                self._replay(self.partition.read(self._position, LOAD_BYTES, at_least_one=True))
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            raise
        except Exception:
            logger.exception("%s can't be loaded", self)
            self.end(again_after_s=RELOAD_S)
            return
        self.is_ready = True
        logger.debug("%s is ready at offset %d", self, self._position)
        self._step(self._machine.loaded)

    def _replay(self, views: list[memoryview]) -> None:
        for view in views:
            for position, header in iterate(view):
                producer = None
                if header.is_transactional:
                    producer = header.producer_id, header.producer_epoch
                records = decode_batch(view, position)
                if header.is_control:
                    self._replay_marker(header, records[0])
                else:
                    for record in records:
                        if record.offset >= self._position:
                            self._machine.replay(record.key, record.value, producer)
                self._position = header.next_offset

    def _replay_marker(self, header: BatchHeader, record: Record) -> None:
        """The end of a transaction; other control records are not for a machine."""
        marker = decode_transaction_marker(record.key, record.value)
        if marker is not None and header.producer_id >= 0:
            producer = header.producer_id, header.producer_epoch
            self._machine.settle(*producer, marker.committed, self.now_ms())

    # -- the end -----------------------------------------------------------------------------

    def end(self, again_after_s: float | None = None) -> None:
        if self._ended:
            return
        self._ended = True
        self.is_ready = False
        self.partition.unlisten(self)
        self._loading.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._held.clear()
        for token in list(self._waiting):
            self._settle_token(token, not_coordinator())
        self._on_end(self, again_after_s)


OnEnd = Callable[[Shard[Any], float | None], None]


class _AppendFailed(Exception):
    """The state has a change that the log hasn't."""


def not_coordinator() -> KafkaError:
    return KafkaError(
        ErrorCode.NOT_COORDINATOR, "This node is not the coordinator: look it up again"
    )


class Coordinators:
    """All shards that this node leads."""

    def __init__(
        self, replicas: Replicas, image: Callable[[], Image], now_ms: Callable[[], int]
    ) -> None:
        self._replicas = replicas
        self._image = image
        self._now_ms = now_ms
        self._kinds: dict[str, Kind[Any]] = {}
        self._shards: dict[GroupKey, Shard[Any]] = {}
        self._closed = False
        self._loads_total = 0

    def add(self, kind: Kind[Any]) -> None:
        self._kinds[kind.topic] = kind
        for partition in list(self._replicas):
            self.attend(partition)

    # -- who is asked ------------------------------------------------------------------------

    def place(self, kind: str, key: str) -> tuple[Topic, int]:
        """The partition that is responsible for a key, wherever it is led."""
        topic = self._image().topics.get(kind)
        if topic is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{kind} does not exist yet")
        return topic, shard_of(key, len(topic.partitions))

    def shard(self, kind: str, key: str) -> Shard[Any]:
        """The shard that answers for a key, if that is here; else raises what to tell."""
        topic = self._image().topics.get(kind)
        if topic is None:
            raise not_coordinator()
        return self._shard(topic.topic_id, shard_of(key, len(topic.partitions)))

    def _shard(self, topic_id: bytes, index: int) -> Shard[Any]:
        shard = self._shards.get((topic_id, index))
        if shard is not None:
            shard.check()
            return shard
        partition = self._replicas.find(topic_id, index)
        if partition is not None and partition.leads:
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{partition} has a new leader"
            )
        raise not_coordinator()

    def shards(self, kind: str) -> list[Shard[Any]]:
        """All of a kind that are here, those that are still being loaded among them."""
        return [it for it in self._shards.values() if it.kind.topic == kind]

    def metrics(self) -> dict[str, float]:
        shards = self._shards.values()
        return {
            "sapwood_coordinator_shards": float(len(shards)),
            "sapwood_coordinator_shards_loading": float(sum(not it.is_ready for it in shards)),
            "sapwood_coordinator_loads_total": float(self._loads_total),
            "sapwood_coordinator_requests_waiting": float(sum(it.waiting for it in shards)),
        }

    # -- news --------------------------------------------------------------------------------

    def attend(self, partition: Partition) -> None:
        """A partition has another role: maybe this node now coordinates something."""
        kind = self._kinds.get(partition.topic)
        if kind is None or self._closed or not (partition.leads and partition.is_confirmed):
            return
        if self._replicas.find(*partition.key) is not partition:
            return
        shard = self._shards.get(partition.key)
        if shard is not None:
            if shard.partition is partition and shard.epoch == partition.leader_epoch:
                return
            shard.end()
        self._loads_total += 1
        self._shards[partition.key] = Shard(kind, partition, self._now_ms, self._ended)

    def _ended(self, shard: Shard[Any], again_after_s: float | None) -> None:
        if self._shards.get(shard.partition.key) is shard:
            del self._shards[shard.partition.key]
        if again_after_s is not None:
            loop = asyncio.get_running_loop()
            loop.call_later(again_after_s, self.attend, shard.partition)

    def marked(
        self, partition: Partition, producer_id: int, producer_epoch: int, *, committed: bool
    ) -> None:
        """A transaction's marker was just appended to the partition."""
        shard = self._shards.get(partition.key)
        if shard is not None and shard.is_ready:  # else it is going to read it
            shard.follow(
                lambda machine, now_ms: machine.settle(
                    producer_id, producer_epoch, committed, now_ms
                )
            )

    def topics_changed(self) -> None:
        for shard in list(self._shards.values()):
            if shard.is_ready:
                shard.follow(lambda machine, now_ms: machine.topics_changed(now_ms))

    def close(self) -> None:
        self._closed = True
        for shard in list(self._shards.values()):
            shard.end()


class ImageTopics:
    """The image's topics, as machines are shown them."""

    def __init__(self, image: Callable[[], Image]) -> None:
        self._image = image

    def __iter__(self) -> Iterator[TopicFacts]:
        return map(_facts, self._image().topics.values())

    def find(self, name: str) -> TopicFacts | None:
        topic = self._image().topics.get(name)
        return None if topic is None else _facts(topic)

    def find_by_id(self, topic_id: bytes) -> TopicFacts | None:
        topic = self._image().topics_by_id.get(topic_id)
        return None if topic is None else _facts(topic)

    def was_deleted(self, topic_id: bytes) -> bool:
        return topic_id in self._image().deleted_topics


def _facts(topic: Topic) -> TopicFacts:
    return TopicFacts(topic.name, topic.topic_id, len(topic.partitions))
