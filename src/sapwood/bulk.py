"""Arrow tables to topics and back, for programs: millions of messages a second.

    with BulkClient("127.0.0.1:9092") as client:
        client.produce_arrow("orders", table)
        table = client.fetch_arrow("orders", 0)

Needs the extra `spark` (pyarrow, numpy, numba), but no Spark.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa

from sapwood.client import KafkaClient
from sapwood.client.config import READ_COMMITTED
from sapwood.client.offsets import EARLIEST, LATEST
from sapwood.client.packed import PackedBatch
from sapwood.client.transactions import Transactor
from sapwood.spark.decoding import SCHEMA, SCHEMA_WITH_HEADERS
from sapwood.spark.encoding import Rows, UnsuitableColumns, partitions_of_keys
from sapwood.spark.kernels import Ints
from sapwood.spark.ranges import DataLost, Range
from sapwood.spark.reading import read_range

__all__ = ["BulkClient", "DataLost", "UnsuitableColumns", "fetch_arrow", "produce_arrow"]

_WRITTEN = {"key", "value", "headers", "timestamp", "partition"}
# A fetched table can be produced again: what only a broker gives is left out.
_LEFT_OUT = {"topic", "offset", "timestampType"}

# So many rows are spread over the partitions at a time: every partition gets its share soon.
_ROWS_AT_ONCE = 65_536
_DEFAULTS = {
    "isolation_level": READ_COMMITTED,
    "fetch_partition_bytes": 8 * 1024 * 1024,
}


class BulkClient:
    """A client for one thread at a time. Options are the fields of `client.ClientConfig`."""

    def __init__(self, bootstrap: str, **options: Any) -> None:
        self.client = KafkaClient(bootstrap, **{**_DEFAULTS, **options})
        self._turn = 0
        self._transactors: dict[str, Transactor] = {}
        self._transactor: Transactor | None = None  # of the transaction that is open

    def __enter__(self) -> BulkClient:
        self.client.connect()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.client.close()

    def produce_arrow(
        self, topic: str, data: pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch]
    ) -> int:
        """Store every row, once and in order within its partition; how many there were.

        Columns: `value`, and if need be `key`, `headers` (a list of key and value), `timestamp` and
        `partition`. Without a partition a key decides as in every Kafka client, and rows without a
        key are spread evenly. Returns when all is acknowledged; raises at the first row that isn't.
        """
        open_batches: deque[PackedBatch] = deque()
        count = 0
        for batch in _batches(data):
            _check_columns(batch.schema)
            for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
                rows = batch.slice(start, _ROWS_AT_ONCE)
                for sent in self._send(topic, rows):
                    open_batches.append(sent)
                    while open_batches and open_batches[0].is_settled:
                        open_batches.popleft().check()
            count += batch.num_rows
        self.client.flush(self._transactor)
        for sent in open_batches:
            sent.check()
        return count

    @contextlib.contextmanager
    def transaction(self, transactional_id: str, timeout_ms: int = 60_000) -> Iterator[None]:
        """What is produced inside becomes visible together at the end, or never.

        Whoever opens a transaction under the same id ends the one before.
        """
        if self._transactor is not None:
            raise RuntimeError("transactions can't be nested: finish the one that is open")
        client = self.client
        transactor = self._transactors.get(transactional_id)
        if transactor is None:
            transactor = client.core.transactor(transactional_id, timeout_ms, client.now_ms)
            self._transactors[transactional_id] = transactor
        client.run(transactor.begin())
        self._transactor = transactor
        try:
            yield
        except BaseException:
            client.run(transactor.abort())
            raise
        else:
            client.run(transactor.commit({}))
        finally:
            self._transactor = None

    def fetch_arrow(
        self,
        topic: str,
        partition: int,
        start: int | None = None,
        end: int | None = None,
        *,
        with_headers: bool = True,
    ) -> pa.Table:
        """The records of one partition from `start` up to, without, `end`; all of them by default.

        DataLost if some of them aren't there any more.
        """
        batches = self.fetch_batches(topic, partition, start, end, with_headers=with_headers)
        return pa.Table.from_batches(batches, SCHEMA_WITH_HEADERS if with_headers else SCHEMA)

    def fetch_batches(
        self,
        topic: str,
        partition: int,
        start: int | None = None,
        end: int | None = None,
        *,
        with_headers: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        """The same one by one, for what is larger than memory."""
        key = topic, partition
        if start is None:
            start = self.client.list_offsets({key: EARLIEST})[key].offset
        if end is None:
            end = self.client.list_offsets({key: LATEST})[key].offset
        wanted = Range(topic, partition, start, end)
        return read_range(self.client, wanted, with_headers=with_headers)

    def _send(self, topic: str, batch: pa.RecordBatch) -> Iterator[PackedBatch]:
        config = self.client.core.config
        rows = Rows(batch, int(time.time() * 1000))
        partitions = self._partitions(topic, batch, rows)
        # Numbers of 16 bits are sorted without comparing them.
        small = partitions.max() < 2**15
        order = np.argsort(partitions.astype(np.int16) if small else partitions, kind="stable")
        ends = np.cumsum(np.bincount(partitions))
        for partition, end in enumerate(ends.tolist()):
            chosen = order[ends[partition - 1] if partition else 0 : end]
            for packed in rows.pack(chosen, config.batch_bytes, config.max_request_bytes):
                yield self.client.send_packed(
                    topic, partition, *packed, transactor=self._transactor
                )

    def _partitions(self, topic: str, batch: pa.RecordBatch, rows: Rows) -> Ints:
        """Where each row goes: as it says itself, else by its key, else in turn."""
        known = self.client.topic(topic)
        count = len(known.partitions)
        partitions = partitions_of_keys(rows.keys, rows.count, count)
        no_key = _nulls(batch, "key")
        if no_key.any():
            led = np.array(known.led_partitions or list(known.partitions), np.int32)
            # Whole batches to one partition after another: a row to each in turn would make
            # many small ones.
            stay = max(1, self.client.core.config.batch_bytes * rows.count // rows.size_bytes)
            turns = self._turn + np.arange(rows.count) // stay
            partitions = np.where(no_key, led[turns % len(led)], partitions)
            self._turn += -(-rows.count // stay)
        given = _nulls(batch, "partition")
        if not given.all():
            column = batch.column("partition").cast(pa.int32()).fill_null(-1).to_numpy()
            partitions = np.where(column < 0, partitions, column)
            if partitions.max() >= count:
                raise UnsuitableColumns(
                    f"column 'partition' holds {partitions.max()}, but topic {topic} has the "
                    f"partitions 0 to {count - 1}"
                )
        return partitions


def produce_arrow(
    topic: str,
    data: pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch],
    *,
    bootstrap: str = "127.0.0.1:9092",
    **options: Any,
) -> int:
    """`BulkClient.produce_arrow` with a client of its own."""
    with BulkClient(bootstrap, **options) as client:
        return client.produce_arrow(topic, data)


def fetch_arrow(
    topic: str,
    partition: int,
    start: int | None = None,
    end: int | None = None,
    *,
    bootstrap: str = "127.0.0.1:9092",
    **options: Any,
) -> pa.Table:
    """`BulkClient.fetch_arrow` with a client of its own."""
    with BulkClient(bootstrap, **options) as client:
        return client.fetch_arrow(topic, partition, start, end)


def _batches(
    data: pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch],
) -> Iterable[pa.RecordBatch]:
    if isinstance(data, pa.RecordBatch):
        return [data]
    return data.to_batches() if isinstance(data, pa.Table) else data


def _check_columns(schema: pa.Schema) -> None:
    unknown = [name for name in schema.names if name not in _WRITTEN | _LEFT_OUT]
    if unknown:
        raise UnsuitableColumns(
            f"there is no place for the columns {', '.join(unknown)}: leave them out, or put them "
            "into `value`"
        )


def _nulls(batch: pa.RecordBatch, name: str) -> Any:
    """Which rows have nothing there; all if there is no such column."""
    if name not in batch.schema.names:
        return np.ones(batch.num_rows, np.bool_)
    return batch.column(name).is_null().to_numpy(zero_copy_only=False)
