"""Wall clocks: each machine has its own, which drifts and jumps; loop time never goes back."""

from __future__ import annotations

from sim.loop import SimLoop

EPOCH_MS = 1_790_000_000_000
LARGEST_JUMP_S = 288.0


class WallClock:
    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._offset_s = 0.0
        self._drift = 0.0
        self._since_s = 0.0

    def now_ms(self) -> int:
        return EPOCH_MS + int(self._seconds() * 1000)

    def jump(self, seconds: float) -> None:
        self._offset_s += seconds

    def set_drift(self, drift: float) -> None:
        """From now on it gains so many seconds per second."""
        elapsed_s = self._loop.elapsed()
        self._offset_s += self._drift * (elapsed_s - self._since_s)
        self._drift, self._since_s = drift, elapsed_s

    def set_right(self) -> None:
        """Somebody has looked at a better clock."""
        self._offset_s = self._drift = 0.0

    def _seconds(self) -> float:
        elapsed_s = self._loop.elapsed()
        return elapsed_s + self._offset_s + self._drift * (elapsed_s - self._since_s)
