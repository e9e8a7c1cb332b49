"""Procedures: calls of several steps, written once for both shells.

A procedure is a generator that yields what it waits for and is resumed when that has come, or when
its time is up. It knows neither loop nor socket; a shell runs it to its end.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar

from sapwood.client.effects import Ticket

T = TypeVar("T")

FOREVER = float("inf")


class Wait(NamedTuple):
    """For the first of the tickets, but no longer than this."""

    tickets: tuple[Ticket[Any], ...]
    until_ms: float = FOREVER

    def is_over(self) -> bool:
        return any(ticket.done for ticket in self.tickets)


Procedure = Generator[Wait, None, T]


def wait_for(ticket: Ticket[T]) -> Procedure[T]:
    if not ticket.done:
        yield Wait((ticket,))
    return ticket.result()
