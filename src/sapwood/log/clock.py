"""A hybrid logical clock: as close to the wall clock as causality allows."""

from __future__ import annotations

COUNTER_BITS = 16
FAR_AHEAD_MS = 3_600_000
"""How far ahead of this host's clock a client is believed that the cluster's is."""


class HybridClock:
    """Readings are 48 bits of milliseconds and a 16-bit counter in one int64.

    They only grow, and exceed everything observed. A counter that runs over carries into the
    milliseconds, which then run ahead of the wall clock until it has caught up.
    """

    __slots__ = ("last",)

    def __init__(self, last: int = 0) -> None:
        self.last = last

    def now(self, wall_ms: int) -> int:
        self.last = max(self.last + 1, wall_ms << COUNTER_BITS)
        return self.last

    def observe(self, remote: int) -> None:
        """Take note of another node's reading, or of one found on disk."""
        self.last = max(self.last, remote)

    def hear(self, remote: int, wall_ms: int) -> None:
        """Take note of a client's reading: it came from a node once, or somebody made it up.

        Believed as far as clocks of hosts may differ, so that nobody can push the clock away.
        """
        if remote <= (wall_ms + FAR_AHEAD_MS) << COUNTER_BITS:
            self.last = max(self.last, remote)


def wall_ms(reading: int) -> int:
    return reading >> COUNTER_BITS
