"""Arrow tables to topics and back, for programs: millions of messages a second.

    with BulkClient("127.0.0.1:9092") as client:
        client.produce_arrow("orders", table)
        table = client.fetch_arrow("orders", 0)

Needs the extra `spark` (pyarrow, numpy, numba), but no Spark.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

import pyarrow as pa

from sapwood.client import KafkaClient
from sapwood.client.cluster import TopicPartition
from sapwood.client.config import READ_COMMITTED
from sapwood.client.offsets import EARLIEST, LATEST
from sapwood.client.times import ClosedTimes
from sapwood.client.transactions import Transactor
from sapwood.spark import timing
from sapwood.spark.columns import UnsuitableColumns
from sapwood.spark.decoding import SCHEMA, SCHEMA_WITH_HEADERS
from sapwood.spark.ranges import DataLost, Range
from sapwood.spark.reading import read_range
from sapwood.spark.sending import BATCH_BYTES, Sender
from sapwood.spark.timing import APPEND_TIME

__all__ = ["BulkClient", "DataLost", "UnsuitableColumns", "fetch_arrow", "produce_arrow"]

_WRITTEN = {"key", "value", "headers", "timestamp", "partition"}
# A fetched table can be produced again: what only a broker gives is left out.
_LEFT_OUT = {"topic", "offset", "timestampType", "append_time"}

_DEFAULTS = {
    "batch_bytes": BATCH_BYTES,
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
        sender = Sender(self.client, self._transactor, self._turn)
        count = 0
        for batch in _batches(data):
            _check_columns(batch.schema)
            sender.send(topic, batch)
            self._turn = sender.turn
            count += batch.num_rows
        sender.finish()
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
        with_append_time: bool = False,
    ) -> pa.Table:
        """The records of one partition from `start` up to, without, `end`; all of them by default.

        `append_time`, on the cluster's own clock, orders them across partitions and topics: see
        `closed_times`. DataLost if some of them aren't there any more.
        """
        batches = self.fetch_batches(
            topic,
            partition,
            start,
            end,
            with_headers=with_headers,
            with_append_time=with_append_time,
        )
        schema = SCHEMA_WITH_HEADERS if with_headers else SCHEMA
        return pa.Table.from_batches(
            batches, schema.append(APPEND_TIME) if with_append_time else schema
        )

    def fetch_batches(
        self,
        topic: str,
        partition: int,
        start: int | None = None,
        end: int | None = None,
        *,
        with_headers: bool = True,
        with_append_time: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """The same one by one, for what is larger than memory."""
        key = topic, partition
        if start is None:
            start = self.client.list_offsets({key: EARLIEST})[key].offset
        if end is None:
            end = self.client.list_offsets({key: LATEST})[key].offset
        wanted = Range(topic, partition, start, end)
        batches = read_range(self.client, wanted, with_headers=with_headers)
        if with_append_time:
            return (timing.with_append_time(self.client, each) for each in batches)
        return batches

    def closed_times(self, topics: Iterable[str]) -> ClosedTimes:
        """Up to which append time these topics are settled: nothing of it or before comes later,
        and all of it lies in these partitions, below these offsets."""
        return self.client.closed_times(topics)

    def offsets_after(self, keys: Iterable[TopicPartition], time: int) -> dict[TopicPartition, int]:
        """Where the records begin that were appended after a time. Between two closed times lie
        the same records for everybody, whenever they look."""
        return self.client.offsets_after(keys, time)


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
