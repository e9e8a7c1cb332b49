"""What a task does: its rows into a transaction of its own, which it leaves open.

Nobody sees them until the driver has ended the transactions of all tasks in one step. If the batch
was committed already, by a driver that died before it could note that, nothing is written.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sapwood.client import ErrorCode, KafkaClient, KafkaError
from sapwood.client.transaction_groups import Child, child_id
from sapwood.client.transactions import Transactor
from sapwood.spark.columns import UnsuitableColumns
from sapwood.spark.patience import OVER, ask_for_more, timeout_ms
from sapwood.spark.planning import MissingTopic
from sapwood.spark.sending import BATCH_BYTES, Sender
from sapwood.spark.sink_options import SinkOptions


class Task(NamedTuple):
    query: str
    batch_id: int
    number: int
    attempt: int
    """Of all attempts of all tasks, so that no two have the same name."""


def write_task(
    options: SinkOptions, columns: list[str], task: Task, batches: Iterator[pa.RecordBatch]
) -> Child | None:
    """Store all rows; the transaction that holds them, if there is one to be ended."""
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return None
    rows = itertools.chain([first], filled)
    client = KafkaClient(options.bootstrap, **{"batch_bytes": BATCH_BYTES, **options.client})
    client.connect()
    with contextlib.closing(client):
        try:
            last_batch_id = client.last_batch(task.query)
        except KafkaError as error:
            if error.code is not ErrorCode.UNSUPPORTED_VERSION:
                raise
            _write_alone(client, options, columns, task, rows)
            return None
        try:
            if task.batch_id > last_batch_id:
                return _write_child(client, options, columns, task, rows)
        except KafkaError as error:
            # A driver that was killed may have been heard only now.
            if client.last_batch(task.query) < task.batch_id:
                if error.code in OVER:
                    ask_for_more(client, options, task.query, task.batch_id)
                raise
    # To the last row all the same: what comes before the sink may keep state.
    deque(rows, maxlen=0)
    return None


def _write_child(
    client: KafkaClient,
    options: SinkOptions,
    columns: list[str],
    task: Task,
    rows: Iterable[pa.RecordBatch],
) -> Child | None:
    name = child_id(task.query, task.batch_id, task.number, task.attempt)
    limit_ms = timeout_ms(client, options, task.query, task.batch_id)
    with _transaction(client, name, limit_ms) as transactor:
        _send(client, transactor, options, columns, task, rows)
        return client.run(transactor.leave_open())


def _write_alone(
    client: KafkaClient,
    options: SinkOptions,
    columns: list[str],
    task: Task,
    rows: Iterable[pa.RecordBatch],
) -> None:
    """Where transactions can't be ended together, each task commits its own."""
    with _transaction(client, f"{task.query}/{task.number}", options.timeout_ms) as transactor:
        _send(client, transactor, options, columns, task, rows)
        client.run(transactor.commit({}))


@contextlib.contextmanager
def _transaction(client: KafkaClient, name: str, limit_ms: int) -> Iterator[Transactor]:
    transactor = client.core.transactor(name, limit_ms, client.now_ms)
    try:
        client.run(transactor.begin())
        yield transactor
    except Exception:
        # So that readers needn't wait until its time is up; what counts is the first error.
        with contextlib.suppress(KafkaError):
            client.run(transactor.abort())
        raise


def _send(
    client: KafkaClient,
    transactor: Transactor,
    options: SinkOptions,
    columns: list[str],
    task: Task,
    rows: Iterable[pa.RecordBatch],
) -> None:
    sender = Sender(client, transactor, task.number)
    for batch in rows:
        for topic, part in _by_topic(options, columns, batch):
            try:
                sender.send(topic, part)
            except KafkaError as error:
                if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                raise MissingTopic(
                    f"there is no topic {topic} at {options.bootstrap}: create it, or look at "
                    "the name again"
                ) from error
    sender.finish()


def _by_topic(
    options: SinkOptions, columns: list[str], batch: pa.RecordBatch
) -> Iterator[tuple[str, pa.RecordBatch]]:
    rows = batch.select([name for name in columns if name != "topic"])
    if options.topic is not None:
        yield options.topic, rows
        return
    topics = batch.column("topic").dictionary_encode()
    if topics.null_count:
        raise UnsuitableColumns(
            "column 'topic' holds a null: fill it in, or set the option topic for all rows"
        )
    names = topics.dictionary.to_pylist()
    for number, name in enumerate(names):
        yield name, rows if len(names) == 1 else rows.filter(pc.equal(topics.indices, number))
