"""`format("sapwood")`: the writers of a batch query and of a stream.

Each task leaves its rows in a transaction that is open, and tells the driver which; `commit` ends
all of them in one step, and notes with them the query and the number of its batch. A batch comes
again if the driver died between that and the note in its checkpoint: the number is known, and the
rows are left out. `write` runs in a task, `commit` and `abort` in a process of the driver.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

from sapwood.client import ErrorCode, KafkaClient, KafkaError
from sapwood.client.calls import TRANSACTION, Coordinator
from sapwood.client.transaction_groups import Child
from sapwood.spark.columns import written_columns
from sapwood.spark.options import WrongOption
from sapwood.spark.patience import OVER, ask_for_more
from sapwood.spark.sink_options import JOB_TIMEOUT_MS, SinkOptions
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct

_QUERY_PROPERTY = "sql.streaming.queryId"
_BATCH_PROPERTY = "streaming.sql.batchId"
_ONLY_BATCH = 0
_UNTOLD = "PrepareCommit"
_READERS_PATIENCE_S = 5.0
_READERS_PAUSE_S = 0.01


class BatchRefused(Exception):
    """A task's transaction was over before all of them could be committed; nothing is visible."""


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What a task tells the driver. No child: it had no rows, or there is nothing left to end."""

    query: str
    child: Child | None


class _Writer:
    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise WrongOption("a topic can't be overwritten, only appended to: mode('append')")
        self._options = options
        self._columns = written_columns(
            [(field.name, field.dataType.simpleString()) for field in schema.fields],
            has_topic=options.topic is not None,
            with_headers=options.with_headers,
            with_timestamps=options.with_timestamps,
        )

    def _write(
        self, context: TaskContext, query: str, batch_id: int, batches: Iterator[pa.RecordBatch]
    ) -> Written:
        # Here and not above: the driver's processes do without the compiled code, and start faster.
        from sapwood.spark.writing import Task, write_task

        task = Task(query, batch_id, context.partitionId(), context.taskAttemptId())
        return Written(query, write_task(self._options, self._columns, task, batches))


class BatchWriter(_Writer, DataSourceArrowWriter):
    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite)
        name, self._number = options.job or (str(uuid.uuid4()), _ONLY_BATCH)
        self._query = f"spark/{name}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._write(_context(), self._query, self._number, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        commit(self._options, messages, self._number)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        abort(self._options, self._query, self._number, for_good=self._options.job is None)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = _context()
        query = context.getLocalProperty(_QUERY_PROPERTY)
        batch_id = context.getLocalProperty(_BATCH_PROPERTY)
        if query is None or batch_id is None:
            raise RuntimeError("Spark doesn't say which query and batch this is")
        return self._write(context, f"spark/{query}", int(batch_id), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        commit(self._options, messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        for query in {each.query for each in messages if isinstance(each, Written)}:
            abort(self._options, query, batchId)


def commit(
    options: SinkOptions, messages: Sequence[WriterCommitMessage | None], batch_id: int
) -> None:
    """All of it becomes visible, now or never."""
    written = [each for each in messages if isinstance(each, Written) and each.child is not None]
    children = [each.child for each in written if each.child is not None]
    if not children:
        return
    query = written[0].query
    with _client(options) as client:
        try:
            client.end_group(query, batch_id, children)
        except KafkaError as error:
            if error.code not in OVER:
                raise
            raise _refused(client, options, query, batch_id, error) from error
        with contextlib.suppress(KafkaError):  # it is committed, whatever happens now
            _await_readers(client, query, children)


def _refused(
    client: KafkaClient, options: SinkOptions, query: str, batch_id: int, error: KafkaError
) -> BatchRefused:
    advice = (
        f"If it comes again, it has {JOB_TIMEOUT_MS / 1000:g} s: run it again"
        if ask_for_more(client, options, query, batch_id)
        else "Raise that, and transaction.max.timeout.ms of the nodes if need be, or give Spark "
        "more cores; then run it again. What a stream has planned stays as it is, but "
        "maxOffsetsPerTrigger keeps later batches small"
    )
    return BatchRefused(
        f"batch {batch_id} is not written, nor any part of it: {error.message}. It took longer "
        f"than a task's transaction may be open (kafka.transaction.timeout.ms). {advice}"
    )


def abort(options: SinkOptions, query: str, batch_id: int, *, for_good: bool = False) -> None:
    """Unless it was committed, which the coordinator knows best: an answer may have been lost.

    `for_good`: it doesn't come again, and is ended as a batch of nothing. A task that Spark gave up
    but hasn't stopped is turned away then; else it would open a transaction that nobody ends.
    """
    try:
        with _client(options) as client:
            client.end_group(query, batch_id, (), committed=for_good)
    except KafkaError as error:
        if error.code is not ErrorCode.UNSUPPORTED_VERSION:
            warning = "batch %d is aborted only when its time is up: %s"
            logging.getLogger("sapwood.spark").warning(warning, batch_id, error)


def _await_readers(client: KafkaClient, query: str, children: Sequence[Child]) -> None:
    """Whoever reads when the job has ended expects to find its rows: let all partitions know.

    They will in any case. So nobody waits for a partition whose leader is away.
    """
    names = [child.transactional_id for child in children]
    deadline_s = time.monotonic() + _READERS_PATIENCE_S
    while time.monotonic() < deadline_s:
        answer = client.request(
            Api.DESCRIBE_TRANSACTIONS,
            Struct(transactional_ids=names),
            Coordinator(TRANSACTION, query),
        )
        if all(it.transaction_state != _UNTOLD for it in answer.transaction_states):
            return
        time.sleep(_READERS_PAUSE_S)


@contextlib.contextmanager
def _client(options: SinkOptions) -> Iterator[KafkaClient]:
    client = KafkaClient(options.bootstrap, **options.client)
    client.connect()
    with contextlib.closing(client):
        yield client


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("rows are written in Spark's tasks only")
    return context
