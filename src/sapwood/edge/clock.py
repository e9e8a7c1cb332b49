"""The cluster's clock as an edge knows it: the latest reading that came by.

Everything that a client can have read here came over a link, and so did a reading that is at least
as late. An edge never reads its own host's clock into it.
"""

from collections.abc import Callable

from sapwood.log import HybridClock


class HeardClock:
    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._clock = HybridClock()

    @property
    def last(self) -> int:
        return self._clock.last

    def observe(self, reading: int) -> None:
        self._clock.observe(reading)

    def hear(self, reading: int) -> None:
        """A client's reading, believed within reason."""
        self._clock.hear(reading, self._now_ms())
