"""How long a node may be silent before it counts as gone.

As long as the settings say, if it speaks in good time. But one that was slow lately gets longer,
and so does everybody if this node itself was held up: to take a busy node for dead has thousands of
groups elect new leaders, which makes every node busier still, and the next one is taken for dead.
Whoever was away for longer than that was not slow, and is not waited for any longer than others.
"""

from __future__ import annotations

import math

MARGIN = 3.0
"""Times the longest silence of late."""
LONGEST = 5.0
"""In silences of the settings."""
FORGOTTEN_S = 10.0
"""After so long a silence of late counts for half."""


class Patience:
    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s
        self._heard_at = float("-inf")
        self._slowest_s = 0.0
        self._slowest_at = 0.0

    def heard(self, now: float, *, first: bool = False) -> None:
        """A request or an answer of a session; before its first one nothing was to be heard."""
        silent_s, self._heard_at = now - self._heard_at, now
        if not first:
            self.was_late(silent_s, now)

    def was_late(self, silent_s: float, now: float) -> None:
        if silent_s < LONGEST * self._silence_s and silent_s >= self._recent_s(now):
            self._slowest_s, self._slowest_at = silent_s, now

    def limit_s(self, now: float) -> float:
        slow_s = MARGIN * self._recent_s(now)
        return min(max(self._silence_s, slow_s), LONGEST * self._silence_s)

    def _recent_s(self, now: float) -> float:
        half_lives = (now - self._slowest_at) / FORGOTTEN_S
        return self._slowest_s * math.exp2(-half_lives)
