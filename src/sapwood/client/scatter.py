"""One question about many partitions: asked at each leader, gathered into one ticket."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from sapwood.client.calls import unreachable
from sapwood.client.cluster import ClusterView, TopicPartition
from sapwood.client.config import ClientConfig
from sapwood.client.connection import Exchange
from sapwood.client.effects import Effects, Ticket
from sapwood.client.errors import STALE_VIEW, error_for, is_retriable
from sapwood.client.pool import MAIN_LANE, ConnectionPool
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError

T = TypeVar("T")
V = TypeVar("V")

_SILENT = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the broker left a partition out")


class Verdict(NamedTuple, Generic[V]):
    """What a broker said about one partition."""

    topic: str
    partition: int
    error_code: int
    value: V


class Scatter(Generic[T, V]):
    """One question about many partitions: asked at each leader, gathered into one ticket.

    Partitions that got a retriable answer are asked for again, wherever their leader is by then.
    """

    def __init__(
        self,
        api: Api,
        items: dict[TopicPartition, T],
        build: Callable[[dict[TopicPartition, T]], Struct],
        read: Callable[[Struct], Iterable[Verdict[V]]],
        ticket: Ticket[dict[TopicPartition, V]],
        started_ms: float,
        deadline_ms: float,
        lane: int = MAIN_LANE,
    ) -> None:
        self.lane = lane
        self.api = api
        self.build = build
        self.read = read
        self.ticket = ticket
        self.started_ms = started_ms
        self.deadline_ms = deadline_ms
        self.open = dict(items)
        self.results: dict[TopicPartition, V] = {}
        self.in_flight: set[TopicPartition] = set()
        self.attempts = 0
        self.not_before_ms = 0.0
        self.last_error: KafkaError | None = None


class Scatterer:
    def __init__(
        self, config: ClientConfig, view: ClusterView, pool: ConnectionPool, effects: Effects
    ) -> None:
        self._config = config
        self._view = view
        self._pool = pool
        self._effects = effects
        self._scatters: list[Scatter[Any, Any]] = []
        self._closed: Exception | None = None

    def submit(self, scatter: Scatter[Any, Any]) -> None:
        if self._closed is not None:
            self._effects.fail(scatter.ticket, self._closed)
        elif not scatter.open:
            self._effects.succeed(scatter.ticket, {})
        else:
            for key in scatter.open:
                self._view.want(*key)
            self._scatters.append(scatter)

    def poll(self, now_ms: float) -> None:
        self._scatters = [each for each in self._scatters if not each.ticket.done]
        for scatter in self._scatters:
            hopeless = self._hopeless(scatter, now_ms)
            if hopeless is not None:
                self._effects.fail(scatter.ticket, hopeless)
            elif scatter.not_before_ms <= now_ms:
                self._ask(scatter, now_ms)

    def moments(self) -> Iterator[float]:
        for each in self._scatters:
            yield each.not_before_ms
            yield each.started_ms + self._config.topic_wait_ms
            yield each.deadline_ms

    def close(self, error: Exception) -> None:
        self._closed = error
        scatters, self._scatters = self._scatters, []
        for scatter in scatters:
            if not scatter.ticket.done:
                self._effects.fail(scatter.ticket, error)

    def _ask(self, scatter: Scatter[Any, Any], now_ms: float) -> None:
        by_leader: dict[int, dict[TopicPartition, Any]] = {}
        for key, item in scatter.open.items():
            leader = self._view.leader(*key)
            if leader is not None and key not in scatter.in_flight:
                by_leader.setdefault(leader.leader, {})[key] = item
        for node_id, items in by_leader.items():
            connection = self._pool.ready(node_id, scatter.lane, now_ms)
            if connection is None:
                continue
            keys = list(items)

            def answered(
                answer: Struct | KafkaError,
                now_ms: float,
                keys: Sequence[TopicPartition] = keys,
            ) -> None:
                self._answered(scatter, keys, answer, now_ms)

            message = scatter.build(items)
            timeout_ms = min(float(self._config.request_timeout_ms), scatter.deadline_ms - now_ms)
            try:
                connection.submit(Exchange(scatter.api, message, answered, timeout_ms), now_ms)
            except (KafkaError, TypeError, ValueError, OverflowError) as error:
                self._effects.fail(scatter.ticket, error)
                return
            scatter.in_flight.update(keys)

    def _answered(
        self,
        scatter: Scatter[Any, Any],
        keys: Sequence[TopicPartition],
        answer: Struct | KafkaError,
        now_ms: float,
    ) -> None:
        scatter.in_flight.difference_update(keys)
        if scatter.ticket.done:
            return
        if isinstance(answer, KafkaError):
            self._again(scatter, answer, now_ms)
            return
        for verdict in scatter.read(answer):
            key = verdict.topic, verdict.partition
            if not verdict.error_code:
                scatter.open.pop(key, None)
                scatter.results[key] = verdict.value
                continue
            error = error_for(verdict.error_code, f"topic {key[0]}, partition {key[1]}")
            if not is_retriable(verdict.error_code):
                self._effects.fail(scatter.ticket, error)
                return
            self._again(scatter, error, now_ms)
        if not scatter.open:
            self._effects.succeed(scatter.ticket, scatter.results)
        elif any(key in scatter.open for key in keys):
            self._again(scatter, scatter.last_error or _SILENT, now_ms)

    def _again(self, scatter: Scatter[Any, Any], error: KafkaError, now_ms: float) -> None:
        scatter.last_error = error
        # One pause per round, however many partitions asked for it.
        if scatter.not_before_ms <= now_ms:
            scatter.not_before_ms = now_ms + self._config.pause_ms(scatter.attempts)
            scatter.attempts += 1
        if error.code in STALE_VIEW:
            self._view.invalidate()

    def _hopeless(self, scatter: Scatter[Any, Any], now_ms: float) -> KafkaError | None:
        if scatter.deadline_ms <= now_ms:
            return scatter.last_error or unreachable(self._config, self._pool)
        for key in scatter.open:
            hopeless = self._view.hopeless(*key, scatter.started_ms, now_ms)
            if hopeless is not None:
                return hopeless
        return None
