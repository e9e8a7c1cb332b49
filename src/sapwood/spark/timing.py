"""When records were appended by the cluster's clock, as a column."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from sapwood.client import KafkaClient
from sapwood.client.times import spans

APPEND_TIME = pa.field("append_time", pa.int64())
_COLUMNS = 3


def with_append_time(client: KafkaClient, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The records of one partition, in their order, each with its batch's append time.

    Null for what compaction or retention has taken since it was read.
    """
    offsets = batch.column("offset").to_numpy()
    if not len(offsets):
        return batch.append_column(APPEND_TIME, pa.array([], pa.int64()))
    key = batch.column("topic")[0].as_py(), batch.column("partition")[0].as_py()
    ranges = {key: (int(offsets[0]), int(offsets[-1]) + 1)}
    packed = client.run(spans(client.core, client.now_ms, ranges))[key]
    found = np.frombuffer(packed, ">i8").reshape(-1, _COLUMNS).astype(np.int64)
    if not len(found):
        return batch.append_column(APPEND_TIME, pa.nulls(len(offsets), pa.int64()))
    firsts, lasts, times = found.T
    at = np.searchsorted(firsts, offsets, side="right") - 1
    is_known = (at >= 0) & (offsets <= lasts[at])
    return batch.append_column(APPEND_TIME, pa.array(times[at], pa.int64(), mask=~is_known))
