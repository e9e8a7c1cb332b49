"""How much of a log may go by now."""

from __future__ import annotations

from sapwood.log.clock import wall_ms
from sapwood.log.config import LogConfig
from sapwood.log.segment import NO_TIMESTAMP, Segment
from sapwood.log.segments import SegmentList

GRACE_MS = 300_000
"""A record that is too old already when it is written stays this long, unless retention is
shorter still, so that whoever wrote it can read it back. Kafka looks only every five minutes."""


def expired_up_to(
    segments: SegmentList,
    config: LogConfig,
    start_offset: int,
    now_ms: int,
    limit_offset: int,
    held_offset: int | None = None,
) -> int:
    """The offset up to which whole segments are too old or too much.

    It may be the end of the active segment: then everything is too old. What lies behind
    `held_offset` stays as long as the log isn't larger than `hold_bytes`.
    """
    if "delete" not in config.cleanup_policy:
        return start_offset
    left_bytes = segments.size_bytes
    excess = segments.size_bytes - config.retention_bytes if config.retention_bytes >= 0 else 0
    offset = start_offset
    for segment in segments:
        if segment.end_offset <= start_offset:
            excess -= segment.size  # on its way out already
            left_bytes -= segment.size
            continue
        too_much = 0 < segment.size <= excess and segment is not segments.active
        if segment.end_offset > limit_offset or not (
            too_much or _too_old(segment, config.retention_ms, now_ms)
        ):
            break
        is_held = held_offset is not None and segment.end_offset > held_offset
        if is_held and not 0 <= config.hold_bytes < left_bytes:
            break
        excess -= segment.size
        left_bytes -= segment.size
        offset = segment.end_offset
    return offset


def _too_old(segment: Segment, retention_ms: int, now_ms: int) -> bool:
    if retention_ms < 0 or not segment.size:
        return False
    appended_ms = wall_ms(segment.max_hlc)
    if now_ms - appended_ms < min(retention_ms, GRACE_MS):
        return False
    newest = segment.max_timestamp
    if newest == NO_TIMESTAMP:
        newest = appended_ms
    return now_ms - newest > retention_ms
