"""Bad records to the topic `<topic>.dead`, each once: the driver sends what tasks have put aside.

It is the sink's way with one task: the rows in a transaction that is left open, ended together with
a note of the query's batch. A batch that comes again finds the note and sends nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from sapwood.client import ErrorCode, KafkaClient, KafkaError
from sapwood.client.admin import NewTopic
from sapwood.spark.decoding import HEADERS_TYPE
from sapwood.spark.sink import Written, commit
from sapwood.spark.sink_options import JOB_TIMEOUT_MS, SinkOptions
from sapwood.spark.staging import DEAD, Staged

_COLUMNS = ["key", "value", "headers", "topic"]
_ROWS_AT_ONCE = 4096


class DeadLetters:
    def __init__(self, bootstrap: str) -> None:
        self._options = SinkOptions(bootstrap=bootstrap, timeout_ms=JOB_TIMEOUT_MS)

    def send(self, query: str, batch: int, dead: Sequence[Staged]) -> None:
        """Everything that was put aside in this batch, unless it was sent before."""
        from sapwood.spark.writing import Task, write_task  # compiled code

        if not dead:
            return
        self._create({each.table for each in dead})
        name = f"spark/{query}/dead"
        task = Task(name, batch, 0, os.getpid())
        child = write_task(self._options, _COLUMNS, task, _rows(dead))
        commit(self._options, [Written(name, child)], batch)

    def _create(self, topics: set[str]) -> None:
        client = KafkaClient(self._options.bootstrap, **self._options.client)
        client.connect()
        with contextlib.closing(client):
            for topic in sorted(topics):
                try:
                    client.create_topics([NewTopic(topic, 1)])
                except KafkaError as error:
                    if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                        raise


def _rows(dead: Sequence[Staged]) -> Iterator[pa.RecordBatch]:
    for each in dead:
        with pq.ParquetFile(each.file.path) as file:
            for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, use_threads=False):
                topics = pa.repeat(each.table, batch.num_rows)
                columns = [batch["key"], batch["value"], _headers(batch, each.table), topics]
                yield pa.record_batch(columns, names=_COLUMNS)


def _headers(batch: pa.RecordBatch, table: str) -> pa.Array:
    """The record's own, and where it was and why it is here."""
    topic = table.removesuffix(DEAD).encode()
    found = []
    for row in batch.select(["partition", "offset", "reason", "headers"]).to_pylist():
        ours = {
            "sapwood-topic": topic,
            "sapwood-partition": b"%d" % row["partition"],
            "sapwood-offset": b"%d" % row["offset"],
            "sapwood-reason": row["reason"].encode(),
        }
        added = [{"key": key, "value": value} for key, value in ours.items()]
        found.append([*(row["headers"] or ()), *added])
    return pa.array(found, HEADERS_TYPE)
