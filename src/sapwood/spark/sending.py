"""Rows of Arrow batches to the partitions of topics, as many at a time as the client has room."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from sapwood.client import KafkaClient
from sapwood.client.packed import PackedBatch
from sapwood.client.transactions import Transactor
from sapwood.spark.columns import UnsuitableColumns
from sapwood.spark.encoding import Rows, partitions_of_keys
from sapwood.spark.kernels import Ints

# A node's work is per batch, so that large ones are cheap: four times the client's usual size
# halved its time. What brokers take by default is a little more than this.
BATCH_BYTES = 1_000_000
# So many rows are spread over the partitions at a time: every partition gets its share soon.
_ROWS_AT_ONCE = 65_536


class Sender:
    """Columns: `value`, and if need be `key`, `headers`, `timestamp` and `partition`.

    Without a partition a key decides as in every Kafka client, and rows without a key are spread
    evenly, from the partition on whose `turn` it is.
    """

    def __init__(self, client: KafkaClient, transactor: Transactor | None, turn: int) -> None:
        self._client = client
        self._transactor = transactor
        self.turn = turn
        self._open: deque[PackedBatch] = deque()

    def send(self, topic: str, batch: pa.RecordBatch) -> None:
        """In order within each partition; raises what became of a row that was sent before."""
        for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
            for sent in self._pack(topic, batch.slice(start, _ROWS_AT_ONCE)):
                self._open.append(sent)
                while self._open and self._open[0].is_settled:
                    self._open.popleft().check()

    def finish(self) -> None:
        """Until every row is acknowledged; raises at the first that isn't."""
        self._client.flush(self._transactor)
        for sent in self._open:
            sent.check()

    def _pack(self, topic: str, batch: pa.RecordBatch) -> Iterator[PackedBatch]:
        config = self._client.core.config
        rows = Rows(batch, int(time.time() * 1000))
        partitions = self._partitions(topic, batch, rows)
        # Numbers of 16 bits are sorted without comparing them.
        small = partitions.max() < 2**15
        order = np.argsort(partitions.astype(np.int16) if small else partitions, kind="stable")
        ends = np.cumsum(np.bincount(partitions))
        for partition, end in enumerate(ends.tolist()):
            chosen = order[ends[partition - 1] if partition else 0 : end]
            for packed in rows.pack(chosen, config.batch_bytes, config.max_request_bytes):
                yield self._client.send_packed(
                    topic, partition, *packed, transactor=self._transactor
                )

    def _partitions(self, topic: str, batch: pa.RecordBatch, rows: Rows) -> Ints:
        """Where each row goes: as it says itself, else by its key, else in turn."""
        known = self._client.topic(topic)
        count = len(known.partitions)
        partitions = partitions_of_keys(rows.keys, rows.count, count)
        no_key = _nulls(batch, "key")
        if no_key.any():
            led = np.array(known.led_partitions or list(known.partitions), np.int32)
            # Whole batches to one partition after another: a row to each in turn would make
            # many small ones.
            stay = max(1, self._client.core.config.batch_bytes * rows.count // rows.size_bytes)
            turns = self.turn + np.arange(rows.count) // stay
            partitions = np.where(no_key, led[turns % len(led)], partitions)
            self.turn += -(-rows.count // stay)
        not_given = _nulls(batch, "partition")
        if not not_given.all():
            column = batch.column("partition").cast(pa.int32()).fill_null(0).to_numpy()
            partitions = np.where(not_given, partitions, column)
            for partition in (partitions.min(), partitions.max()):
                if not 0 <= partition < count:
                    raise UnsuitableColumns(
                        f"column 'partition' holds {partition}, but topic {topic} has the "
                        f"partitions 0 to {count - 1}; null is for any"
                    )
        return partitions


def _nulls(batch: pa.RecordBatch, name: str) -> Any:
    """Which rows have nothing there; all if there is no such column."""
    if name not in batch.schema.names:
        return np.ones(batch.num_rows, np.bool_)
    return batch.column(name).is_null().to_numpy(zero_copy_only=False)
