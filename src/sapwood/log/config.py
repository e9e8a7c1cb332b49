"""What can be configured about one log; names and defaults are Kafka's."""

from __future__ import annotations

from dataclasses import dataclass

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
NEVER_MS = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LogConfig:
    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * _DAY_MS
    retention_bytes: int = -1
    retention_ms: int = 7 * _DAY_MS
    retention_acked: bool = False
    """Whether records go as soon as all durable subscribers have acknowledged them."""
    hold_bytes: int = -1
    """The size past which durable subscriptions hold nothing back; -1: they always do."""
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    delete_retention_ms: int = _DAY_MS
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = NEVER_MS
    min_cleanable_dirty_ratio: float = 0.5
    index_interval_bytes: int = 4096
    preallocate: bool = True
    """Unlike Kafka's default: a full disk shall fail the write, not the sync."""
    flush: str = "sync"
    """`sync`: acknowledged means synced. `os`: acknowledged means written."""
