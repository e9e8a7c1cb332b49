"""Times that are over for a partition."""

from __future__ import annotations

from sapwood.replica.partition import Partition


def closed(partition: Partition, own: int, *, stable: bool = False) -> tuple[int, int]:
    """A time and an offset: no record there or behind is, or will ever be, of that time or before.

    `own` is what this node's clock has passed for good, by now. What the log holds behind that
    offset is not committed yet, or behind a transaction that is open: that time isn't over.
    """
    partition.check_confirmed()
    time = partition.group.agreed_time(own)
    offset = partition.last_stable_offset if stable else partition.high_watermark
    for _, _, appended in partition.look_up(lambda log: log.spans(offset, log.end_offset)):
        time = min(time, appended - 1)
    return time, offset
