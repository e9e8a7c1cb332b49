"""What the unfinished frames and unanswered requests of all clients may hold together."""

from collections.abc import Callable


class Room:
    """When it is full, only those are read from who hold less than their share of it.

    So whoever holds a lot can't keep out who asks for little. Nodes don't count: they are few,
    and the cluster needs them most when clients are a nuisance.
    """

    def __init__(self, limit_bytes: int, on_turn: Callable[[], None]) -> None:
        self._limit_bytes = limit_bytes
        self._on_turn = on_turn
        """To be told when it is full, and when it no longer is."""
        self._holders = 0
        self.used_bytes = 0
        self.is_full = False

    def change(self, before: int, after: int) -> None:
        """What one of them holds."""
        self.used_bytes += after - before
        self._holders += (after > 0) - (before > 0)
        # Full until a quarter is free: not everybody is to be stopped and started for each request.
        limit = self._limit_bytes * 3 // 4 if self.is_full else self._limit_bytes
        if (self.used_bytes >= limit) != self.is_full:
            self.is_full = not self.is_full
            self._on_turn()

    def has_some_for(self, held: int) -> bool:
        """Whether more may be read of one who holds so much."""
        return not self.is_full or held * self._holders < self._limit_bytes
