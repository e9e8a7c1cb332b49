"""What the core hands out: effects for a shell to carry out, tickets for a caller to wait on."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from sapwood.wire.codec import Buffer

T = TypeVar("T")


class Ticket(Generic[T]):
    """A promise that knows no event loop: the core settles it, a shell wakes whoever waits."""

    __slots__ = ("_value", "done", "error", "waiters")

    def __init__(self) -> None:
        self.done = False
        self.error: Exception | None = None
        self._value: T | None = None
        # Belongs to the shell: whatever it must wake when this ticket is settled.
        self.waiters: list[object] = []

    def result(self) -> T:
        if not self.done:
            raise RuntimeError("the ticket isn't settled yet")
        if self.error is not None:
            raise self.error
        return self._value  # type: ignore[return-value]

    def settle(self, value: T | None, error: Exception | None) -> None:
        if self.done:
            raise RuntimeError("a ticket was settled twice")
        self.done = True
        self._value = value
        self.error = error


class Connect(NamedTuple):
    connection: int
    host: str
    port: int


class Send(NamedTuple):
    connection: int
    buffers: list[Buffer]


class Close(NamedTuple):
    """`is_orderly`: what was given to send still goes out. Else whoever hangs there is cut off."""

    connection: int
    is_orderly: bool


class Settled(NamedTuple):
    ticket: Ticket[object]


Effect = Connect | Send | Close | Settled


class Effects:
    """Collects effects in the order in which they must be carried out."""

    __slots__ = ("_pending", "settled_count")

    def __init__(self) -> None:
        self._pending: list[Effect] = []
        self.settled_count = 0

    def add(self, effect: Effect) -> None:
        self._pending.append(effect)

    def succeed(self, ticket: Ticket[T], value: T) -> None:
        ticket.settle(value, None)
        self.settled_count += 1
        self._pending.append(Settled(ticket))  # type: ignore[arg-type]

    def fail(self, ticket: Ticket[T], error: Exception) -> None:
        ticket.settle(None, error)
        self.settled_count += 1
        self._pending.append(Settled(ticket))  # type: ignore[arg-type]

    def take(self) -> list[Effect]:
        taken, self._pending = self._pending, []
        return taken
