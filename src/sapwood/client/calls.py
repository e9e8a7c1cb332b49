"""Calls: requests that find their broker, and find it again when the cluster has moved on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from sapwood.client.cluster import ClusterView
from sapwood.client.config import ClientConfig
from sapwood.client.connection import Connection, Exchange
from sapwood.client.effects import Effects, Ticket
from sapwood.client.errors import MISPLACED, STALE_VIEW, error_for
from sapwood.client.pool import MAIN_LANE, ConnectionPool
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError

T = TypeVar("T")


class AnyNode(NamedTuple):
    pass


class Node(NamedTuple):
    node_id: int


class Leader(NamedTuple):
    topic: str
    partition: int


class Controller(NamedTuple):
    pass


class Coordinator(NamedTuple):
    """Who looks after a consumer group, or after a transactional id."""

    kind: int
    key: str


GROUP, TRANSACTION = 0, 1

Target = AnyNode | Node | Leader | Controller | Coordinator


@dataclass(slots=True)
class Call(Generic[T]):
    """`read` turns the answer into the ticket's value or raises KafkaError.

    A broken connection, or an answer that it was MISPLACED, sends the call round again until its
    deadline; `retried` narrows that, for what must not arrive twice.
    """

    api: Api
    message: Struct
    target: Target
    read: Callable[[Struct], T]
    ticket: Ticket[T]
    started_ms: float
    deadline_ms: float
    max_version: int | None = None
    retried: frozenset[ErrorCode] = MISPLACED
    attempts: int = 0
    seen_moment: int | None = None  # of the view that didn't know the target
    not_before_ms: float = 0.0
    last_error: KafkaError | None = None
    lane: int = MAIN_LANE
    was_cut: bool = False  # sent over a connection that broke: it may yet arrive once more


class Router:
    def __init__(
        self, config: ClientConfig, view: ClusterView, pool: ConnectionPool, effects: Effects
    ) -> None:
        self._config = config
        self._view = view
        self._pool = pool
        self._effects = effects
        self._waiting: list[Call[Any]] = []
        self._coordinators: dict[Coordinator, int] = {}
        self._searches: dict[Coordinator, Ticket[int]] = {}
        self._closed: Exception | None = None

    def submit(self, call: Call[Any]) -> None:
        if self._closed is not None:
            self._effects.fail(call.ticket, self._closed)
        else:
            self._waiting.append(call)

    def poll(self, now_ms: float) -> None:
        calls, self._waiting = self._waiting, []
        failed = self._finish_searches()
        for call in calls:
            if call.target in failed:
                self._effects.fail(call.ticket, failed[call.target])
                continue
            hopeless = self._hopeless(call, now_ms)
            if hopeless is not None:
                self._effects.fail(call.ticket, hopeless)
            elif call.not_before_ms > now_ms:
                self._waiting.append(call)
            else:
                self._dispatch(call, now_ms)

    def moments(self) -> Iterator[float]:
        for each in self._waiting:
            yield each.not_before_ms
            yield each.started_ms + self._config.topic_wait_ms
            yield each.deadline_ms

    def close(self, error: Exception) -> None:
        self._closed = error
        calls, self._waiting = self._waiting, []
        for call in calls:
            self._effects.fail(call.ticket, error)

    def _dispatch(self, call: Call[Any], now_ms: float) -> None:
        connection = self._find(call.target, call.lane, now_ms)
        if connection is None:
            if isinstance(call.target, Coordinator) and self._is_out_of_reach(call.target):
                self._coordinators.pop(call.target, None)  # by now it may be another node
                self._pause(call, now_ms)
            self._waiting.append(call)
            return

        def answered(answer: Struct | KafkaError, now_ms: float) -> None:
            self._answered(call, answer, now_ms)

        timeout_ms = min(float(self._config.request_timeout_ms), call.deadline_ms - now_ms)
        exchange = Exchange(
            call.api, call.message, answered, timeout_ms, max_version=call.max_version
        )
        try:
            connection.submit(exchange, now_ms)
        except (KafkaError, TypeError, ValueError, AttributeError, OverflowError) as error:
            # The message can't be encoded, or not for this broker: that is the caller's to know.
            self._effects.fail(call.ticket, error)

    def _find(self, target: Target, lane: int, now_ms: float) -> Connection | None:
        match target:
            case Node(node_id):
                pass
            case Leader(topic, partition):
                self._view.want(topic, partition)
                leader = self._view.leader(topic, partition)
                if leader is None:
                    return None
                node_id = leader.leader
            case Controller():
                # A KRaft broker names some live broker; any forwards to the real controller.
                if self._view.controller not in self._view.brokers:
                    return self._pool.any_ready(now_ms)
                node_id = self._view.controller
            case Coordinator():
                found = self._coordinators.get(target)
                if found is None or found not in self._view.brokers:
                    self._search(target, now_ms)
                    return None
                node_id = found
            case AnyNode():
                return self._pool.any_ready(now_ms)
        return self._pool.ready(node_id, lane, now_ms)

    def _search(self, target: Coordinator, now_ms: float) -> None:
        if target in self._searches:
            return
        ticket = self._searches[target] = Ticket()
        message = Struct(key=target.key, key_type=target.kind, coordinator_keys=[target.key])
        deadline_ms = now_ms + self._config.api_timeout_ms
        call = Call(
            Api.FIND_COORDINATOR, message, AnyNode(), read_coordinator, ticket, now_ms, deadline_ms
        )
        self._dispatch(call, now_ms)

    def _finish_searches(self) -> dict[Target, Exception]:
        """Take in who was found; the targets that can't be found, and why."""
        failed: dict[Target, Exception] = {}
        for target, ticket in list(self._searches.items()):
            if not ticket.done:
                continue
            del self._searches[target]
            if ticket.error is not None:
                failed[target] = ticket.error
                continue
            self._coordinators[target] = ticket.result()
            if ticket.result() not in self._view.brokers:
                self._view.invalidate()
        return failed

    def _answered(self, call: Call[Any], answer: Struct | KafkaError, now_ms: float) -> None:
        try:
            if isinstance(answer, KafkaError):
                raise answer
            value = call.read(answer)
        except KafkaError as error:
            if isinstance(call.target, Coordinator) and error.code in MISPLACED:
                self._coordinators.pop(call.target, None)
            if error.code not in call.retried:
                self._effects.fail(call.ticket, error)
                return
            if error.code in STALE_VIEW:
                self._view.invalidate()
            call.last_error = error
            call.was_cut = call.was_cut or error.code is ErrorCode.NETWORK_EXCEPTION
            self._pause(call, now_ms)
            self._waiting.append(call)
        except (AttributeError, ValueError, TypeError) as error:
            # An answer of another shape than asked for: better told than waited for in vain.
            self._effects.fail(call.ticket, error)
        else:
            self._effects.succeed(call.ticket, value)

    def _pause(self, call: Call[Any], now_ms: float) -> None:
        call.not_before_ms = now_ms + self._config.pause_ms(call.attempts)
        call.attempts += 1

    def _is_out_of_reach(self, target: Coordinator) -> bool:
        found = self._coordinators.get(target)
        return found is not None and self._pool.has_failed(found)

    def _hopeless(self, call: Call[Any], now_ms: float) -> KafkaError | None:
        if call.deadline_ms <= now_ms:
            return call.last_error or unreachable(self._config, self._pool)
        if isinstance(call.target, Leader):
            return self._view.hopeless(*call.target, call.started_ms, now_ms)
        if isinstance(call.target, Node) and call.target.node_id not in self._view.brokers:
            if call.seen_moment is None:
                call.seen_moment = self._view.moment
                self._view.invalidate()
            elif self._view.moment > call.seen_moment:
                known = ", ".join(map(str, sorted(self._view.brokers)))
                return KafkaError(
                    ErrorCode.BROKER_NOT_AVAILABLE,
                    f"there is no node {call.target.node_id}; there are: {known}",
                )
        return None


def read_coordinator(answer: Struct) -> int:
    found = answer.coordinators[0] if hasattr(answer, "coordinators") else answer
    if found.error_code:
        raise error_for(found.error_code, "no coordinator", found.error_message)
    return int(found.node_id)


def unreachable(config: ClientConfig, pool: ConnectionPool) -> KafkaError:
    addresses = ", ".join(f"{host}:{port}" for host, port in config.bootstrap)
    reason = f" ({pool.last_error.message})" if pool.last_error else ""
    return KafkaError(
        ErrorCode.NETWORK_EXCEPTION,
        f"no broker answered at {addresses}{reason}: check the address, or start one with "
        "`sapwood up`",
    )
