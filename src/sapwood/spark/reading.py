"""What a task does: one partition from one offset to another, as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from sapwood.client import ErrorCode, KafkaClient, KafkaError
from sapwood.client.cluster import TopicPartition
from sapwood.client.offsets import EARLIEST, LATEST
from sapwood.spark.decoding import record_batches
from sapwood.spark.planning import is_deleted
from sapwood.spark.ranges import Range, report_loss

# A cluster that lost a node has new leaders within seconds; one that lost a majority may not.
PATIENCE_S = 60.0
# Silence after which the log's end is looked at: does what is waited for exist at all?
_DOUBT_S = 5.0

_GONE = (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def read_range(
    client: KafkaClient,
    wanted: Range,
    *,
    with_headers: bool = False,
    may_lose: bool = False,
    may_vanish: bool = False,
    patience_s: float = PATIENCE_S,
) -> Iterator[pa.RecordBatch]:
    """Everything from `start` up to, without, `stop`; leaders may move and nodes die meanwhile.

    What retention or a deletion has taken raises DataLost, or is logged if it `may_lose`; if it
    `may_vanish`, so is the deletion of the topic.
    """
    key = wanted.topic, wanted.partition
    position, stop, silence_s = wanted.start, wanted.stop, 0.0
    while position < stop:
        doubt_s = min(_DOUBT_S, patience_s)
        try:
            for chunk in client.fetch(
                {key: position}, stop_at={key: stop}, stall_timeout_s=doubt_s
            ):
                silence_s = 0.0
                position = chunk.next_offset
                yield from record_batches(chunk, with_headers=with_headers)
            return
        except TimeoutError:
            silence_s += doubt_s
            error = KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"topic {key[0]}, partition {key[1]}: nothing came from offset {position} on "
                f"for {silence_s:g} s: look at the cluster with `sapwood status`",
            )
        except KafkaError as failure:
            if failure.code not in _GONE:
                raise
            silence_s, error = patience_s, failure
        first, end = _bounds(client, key)
        if position < first:
            report_loss(*key, position, min(first, stop), may_lose)
            position = first
        elif end < stop:
            is_no_loss = may_lose or (may_vanish and is_deleted(client, wanted.topic))
            report_loss(*key, max(position, end), stop, is_no_loss)
            stop = end
        elif silence_s >= patience_s:
            raise error


def _bounds(client: KafkaClient, key: TopicPartition) -> tuple[int, int]:
    """Where the partition begins and ends; nowhere if there is none."""
    try:
        first = client.list_offsets({key: EARLIEST})[key].offset
        return first, client.list_offsets({key: LATEST})[key].offset
    except KafkaError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        return 0, 0
