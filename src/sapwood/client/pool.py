"""Connections by node and lane: opened when first needed, reopened with back-off.

A lane is a connection of its own to the same node. Brokers answer in order, so a fetch that is
parked for half a second would hold up every other answer behind it: each fetcher has its lane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sapwood.client.cluster import ClusterView
from sapwood.client.config import ClientConfig
from sapwood.client.connection import CausalClock, Connection, State
from sapwood.client.effects import Close, Connect, Effects
from sapwood.wire.errors import ErrorCode, KafkaError

MAIN_LANE = 0
PATIENCE_MS = 1_000
Address = tuple[str, int]


@dataclass(slots=True)
class _Setback:
    failures: int
    not_before_ms: float


class ConnectionPool:
    def __init__(
        self,
        config: ClientConfig,
        view: ClusterView,
        effects: Effects,
        draw: Callable[[], float],
    ) -> None:
        self._config = config
        self._view = view
        self._effects = effects
        self._draw = draw
        self._next_number = 0
        self._next_candidate = int(draw() * len(config.bootstrap))
        self._setbacks: dict[Address, _Setback] = {}
        self.connections: dict[int, Connection] = {}
        self.clock = CausalClock()
        self.last_error: KafkaError | None = None

    def ready(self, node_id: int, lane: int, now_ms: float) -> Connection | None:
        """The node's connection if it can take requests; else one is opened, back-off allowing."""
        broker = self._view.brokers.get(node_id)
        if broker is None:
            return None
        for connection in self.connections.values():
            if connection.lane == lane and self._leads_to(connection, node_id, broker[1:3]):
                return connection if connection.state is State.READY else None
        self._open(broker.host, broker.port, lane, node_id, now_ms)
        return None

    def has_failed(self, node_id: int) -> bool:
        """Whether the last attempt to reach the node came to nothing."""
        broker = self._view.brokers.get(node_id)
        return broker is not None and (broker.host, broker.port) in self._setbacks

    def any_ready(self, now_ms: float) -> Connection | None:
        """The least busy connection to whichever broker; the bootstrap list is the last resort."""
        mains = [each for each in self.connections.values() if each.lane == MAIN_LANE]
        usable = [each for each in mains if each.state is State.READY]
        if usable:
            return min(usable, key=lambda each: len(each.in_flight))
        if any(now_ms < self._patience_ends_ms(each) for each in mains):
            return None
        brokers = [(broker.host, broker.port) for broker in self._view.brokers.values()]
        candidates = [*dict.fromkeys([*brokers, *self._config.bootstrap])]
        tried = {(each.host, each.port) for each in mains}
        candidates = [each for each in candidates if each not in tried]
        for step in range(len(candidates)):
            host, port = candidates[(self._next_candidate + step) % len(candidates)]
            if self._may_open((host, port), now_ms):
                self._next_candidate += step + 1
                self._open(host, port, MAIN_LANE, None, now_ms)
                break
        return None

    def opened(self, number: int, now_ms: float) -> None:
        connection = self.connections.get(number)
        if connection is not None:
            connection.opened(now_ms)

    def drop(self, number: int, reason: KafkaError, now_ms: float) -> None:
        """The connection broke, or must go. Its requests fail with `reason`."""
        connection = self.connections.pop(number, None)
        if connection is None:
            return
        address = (connection.host, connection.port)
        if connection.state is State.READY:
            self._setbacks.pop(address, None)
        else:
            setback = self._setbacks.setdefault(address, _Setback(0, 0.0))
            pause_ms = self._config.pause_ms(setback.failures)
            setback.failures += 1
            setback.not_before_ms = now_ms + pause_ms * (0.75 + self._draw() / 2)
        self.last_error = reason
        if connection.in_flight or connection.state is not State.READY:
            self._view.invalidate()  # an idle connection that is closed says nothing
        self._effects.add(Close(number, is_orderly=False))
        connection.lost(reason, now_ms)

    def close(self, reason: str, now_ms: float, lane: int | None = None) -> None:
        """Part with every broker in good order; or only on one lane."""
        error = KafkaError(ErrorCode.NETWORK_EXCEPTION, reason)
        for connection in list(self.connections.values()):
            if lane is None or connection.lane == lane:
                del self.connections[connection.number]
                self._effects.add(Close(connection.number, is_orderly=True))
                connection.lost(error, now_ms)

    def expire(self, now_ms: float) -> None:
        for connection in list(self.connections.values()):
            deadline_ms = connection.deadline_ms
            if deadline_ms is not None and deadline_ms <= now_ms:
                what = "connect" if connection.state is State.CONNECTING else "answer"
                reason = KafkaError(
                    ErrorCode.NETWORK_EXCEPTION,
                    f"the broker at {connection.address} didn't {what} in time: "
                    "check that it is up and can be reached",
                )
                self.drop(connection.number, reason, now_ms)

    def moments(self) -> Iterator[float]:
        """Deadlines, and the ends of back-offs that somebody may be waiting for."""
        for connection in self.connections.values():
            deadline_ms = connection.deadline_ms
            if deadline_ms is not None:
                yield deadline_ms
            yield self._patience_ends_ms(connection)
        for setback in self._setbacks.values():
            yield setback.not_before_ms

    def _patience_ends_ms(self, connection: Connection) -> float:
        """A host that swallows packets must not keep us from asking the next one."""
        if connection.state is not State.CONNECTING:
            return float("-inf")
        return connection.opened_by_ms - self._config.connect_timeout_ms + PATIENCE_MS

    def _may_open(self, address: Address, now_ms: float) -> bool:
        setback = self._setbacks.get(address)
        return setback is None or setback.not_before_ms <= now_ms

    def _open(self, host: str, port: int, lane: int, node_id: int | None, now_ms: float) -> None:
        if not self._may_open((host, port), now_ms):
            return
        number = self._next_number
        self._next_number += 1
        opened_by_ms = now_ms + self._config.connect_timeout_ms
        self.connections[number] = Connection(
            number, host, port, lane, node_id, self._config, self._effects, opened_by_ms, self.clock
        )
        self._effects.add(Connect(number, host, port))

    @staticmethod
    def _leads_to(connection: Connection, node_id: int, address: tuple[str, int]) -> bool:
        """A bootstrap connection serves the node at its address; a moved node needs another."""
        same_address = (connection.host, connection.port) == address
        return same_address and connection.node_id in (None, node_id)
