"""`format("sapwood")`: the readers of a batch query and of a stream.

The driver's reader plans; `read` runs in a task, in another process and perhaps on another host, so
it has nothing but the options and its range. Spark keeps a stream's positions in its checkpoint:
a range that was planned once can always be read again.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from sapwood.spark.sink import BatchWriter, StreamWriter

from sapwood.client import ErrorCode, KafkaClient, KafkaError
from sapwood.client.groups import NO_MEMBER, Committed
from sapwood.spark.options import Options, WrongOption, read_options
from sapwood.spark.planning import (
    Offsets,
    Survey,
    admit,
    from_json,
    is_deleted,
    split,
    to_json,
)
from sapwood.spark.ranges import Range, report_loss
from sapwood.spark.sink_options import read_sink_options
from sapwood.spark.times import AppendTimes, with_times

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
COLUMNS = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
COLUMNS_WITH_HEADERS = StructType([*COLUMNS.fields, StructField("headers", ArrayType(_HEADER))])
TIMES = (StructField("appendTime", LongType()), StructField("topicId", BinaryType()))

# Spark asks for news as fast as it can, whether there are any or not.
_LOOK_EVERY_S = 0.1
# New partitions and topics are looked for less often.
_SURVEY_EVERY_S = 1.0
_SHOW_TIMEOUT_S = 5.0


class SapwoodSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "sapwood"

    def schema(self) -> StructType:
        headers, times = (
            str(self.options.get(name)).lower() == "true"
            for name in ("includeHeaders", "appendTimes")
        )
        return _columns(with_headers=headers, with_times=times)

    def reader(self, schema: StructType) -> BatchReader:
        options = read_options(self.options, streaming=False)
        _check_schema(schema, options)
        return BatchReader(options)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        options = read_options(self.options, streaming=True)
        _check_schema(schema, options)
        return StreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from sapwood.spark.sink import BatchWriter

        return BatchWriter(read_sink_options(self.options, streaming=False), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        from sapwood.spark.sink import StreamWriter

        return StreamWriter(read_sink_options(self.options, streaming=True), schema, overwrite)


class Task(InputPartition):
    def __init__(self, wanted: Range) -> None:
        super().__init__(tuple(wanted))
        self.wanted = wanted


class BatchReader(DataSourceReader):
    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        survey = Survey(self._options)
        try:
            keys = survey.partitions()
            starts = survey.resolve(self._options.start, keys, is_end=False)
            ends = survey.resolve(self._options.end, keys, is_end=True)
        finally:
            survey.close()
        return _tasks(starts, ends, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(self._options, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Options) -> None:
        self._options = options
        self._survey: Survey | None = None
        self._keys: list[tuple[str, int]] = []
        self._keys_at_s = self._looked_at_s = float("-inf")
        self._target: Offsets | None = None
        self._waiting_since_s: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_survey": None}  # connections stay in their process

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        survey = self._connected()
        return to_json(survey.resolve(self._options.start, survey.partitions(), is_end=False))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._options.most_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._closed_ends(by_now=True) if self._options.with_times else self._ends()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return to_json(self._ends())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begin = from_json(start)
        self._pause()
        ends = self._ends()
        ends |= self._missing(begin, ends)
        for key, offset in begin.items():
            if offset > ends.get(key, offset):
                report_loss(*key, ends[key], offset, self._options.may_lose)
        if self._options.with_times:
            ends = self._settled(begin, ends)
        elif self._target is not None:
            ends = {
                key: min(offset, self._target.get(key, begin.get(key, 0)))
                for key, offset in ends.items()
                if key in self._target or key in begin
            }
        begin = self._with_new(begin, ends)
        fresh = sum(max(0, offset - begin[key]) for key, offset in ends.items())
        if fresh:
            self._looked_at_s = float("-inf")
        if self._should_wait(fresh):
            return start
        if isinstance(limit, ReadMaxRows):
            few = self._times().admit if self._options.with_times else admit
            ends = few(begin, ends, limit.max_rows)
        return to_json(ends)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        known, ends = from_json(start), from_json(end)
        begin = self._with_new(known, ends)
        for key in begin.keys() - known.keys():
            if begin[key]:  # nobody was promised what came before
                report_loss(*key, 0, begin[key], may_lose=True)
        return _tasks(begin, ends, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Show the positions to those who watch consumer groups.

        The checkpoint is what counts: a query doesn't fail because nobody could be shown anything.
        """
        group = self._options.group
        if group is None:
            return
        client = self._connected().client
        positions = {key: Committed(offset, "") for key, offset in from_json(end).items()}
        ticket = client.core.groups.commit(group, NO_MEMBER, positions, client.now_ms())
        try:
            client.run_until(lambda: ticket.done, _SHOW_TIMEOUT_S)
            ticket.result()
        except (KafkaError, TimeoutError) as error:
            warning = "positions are not shown to the group %s: %s"
            logging.getLogger("sapwood.spark").warning(warning, group, error)

    def stop(self) -> None:
        if self._survey is not None:
            self._survey.close()
            self._survey = None

    def _connected(self) -> Survey:
        if self._survey is None:
            self._survey = Survey(self._options)
        return self._survey

    def _pause(self) -> None:
        """Let some time pass after a look that brought nothing."""
        now_s = time.monotonic()
        wait_s = self._looked_at_s + _LOOK_EVERY_S - now_s
        if wait_s > 0:
            time.sleep(wait_s)
        self._looked_at_s = now_s + max(0.0, wait_s)

    def _ends(self) -> Offsets:
        survey = self._connected()
        if time.monotonic() >= self._keys_at_s + _SURVEY_EVERY_S:
            self._look_around(survey)
        try:
            return survey.ends(self._keys)
        except KafkaError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            self._look_around(survey)  # a topic was deleted a moment ago
            return survey.ends(self._keys)

    def _missing(self, begin: Offsets, ends: Offsets) -> Offsets:
        """Where those stand that nobody told the end of, and that aren't gone for good."""
        kept: Offsets = {}
        topics = {topic for topic, _ in ends}
        for topic, keys in itertools.groupby(sorted(begin.keys() - ends.keys()), itemgetter(0)):
            may_vanish = self._options.may_vanish and topic not in topics
            if may_vanish and not is_deleted(self._connected().client, topic):
                kept |= {key: begin[key] for key in keys}
                continue
            for key in keys:
                report_loss(*key, begin[key], None, self._options.may_lose or may_vanish)
        return kept

    def _with_new(self, begin: Offsets, ends: Offsets) -> Offsets:
        """With the partitions that are new: these are read from their first record on."""
        return {**self._connected().firsts(ends.keys() - begin.keys()), **begin}

    def _times(self) -> AppendTimes:
        return AppendTimes(self._connected().client, self._options.topics)

    def _closed_ends(self, *, by_now: bool = False) -> Offsets:
        """Up to a time that is over everywhere, so that what comes later is younger."""
        times = self._times()
        return times.ends(times.closed_by_now() if by_now else times.closed())

    def _settled(self, begin: Offsets, ends: Offsets) -> Offsets:
        """What of it is settled for good; what was so once stays so, though a leader that is new
        may tell an earlier time for a moment."""
        closed = self._closed_ends() if self._target is None else self._target
        known = {key: min(offset, ends.get(key, offset)) for key, offset in begin.items()}
        return {key: max(offset, known.get(key, 0)) for key, offset in closed.items()}

    def _look_around(self, survey: Survey) -> None:
        self._keys = survey.partitions(may_lack=True)
        self._keys_at_s = time.monotonic()

    def _should_wait(self, fresh: int) -> bool:
        """For more records, if so few are there that the options ask for patience."""
        least = self._options.least_per_trigger
        if least is None or self._target is not None or fresh >= least or not fresh:
            self._waiting_since_s = None
            return False
        now_s = time.monotonic()
        if self._waiting_since_s is None:
            self._waiting_since_s = now_s
        if now_s - self._waiting_since_s < self._options.trigger_delay_ms / 1000:
            return True
        self._waiting_since_s = None
        return False


def _columns(*, with_headers: bool, with_times: bool) -> StructType:
    columns = COLUMNS_WITH_HEADERS if with_headers else COLUMNS
    return StructType([*columns.fields, *TIMES]) if with_times else columns


def read_task(options: Options, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, Task):  # Spark's stand-in for "there is nothing to read"
        return
    # Here and not above: the driver's processes do without the compiled code, and start faster.
    from sapwood.spark.reading import read_range

    wanted = partition.wanted
    with KafkaClient(options.bootstrap, **options.client) as client:
        batches = read_range(
            client,
            wanted,
            with_headers=options.with_headers,
            may_lose=options.may_lose,
            may_vanish=options.may_vanish,
        )
        if options.with_times:
            batches = with_times(client, wanted.topic, batches)
        yield from batches


def _tasks(starts: Offsets, ends: Offsets, options: Options) -> list[InputPartition]:
    ranges = [Range(*key, starts[key], end) for key, end in sorted(ends.items())]
    return [Task(each) for each in split(ranges, options)]


def _check_schema(schema: StructType, options: Options) -> None:
    columns = _columns(with_headers=options.with_headers, with_times=options.with_times)
    names = columns.fieldNames()
    if schema.fieldNames() != names:
        raise WrongOption(f"the columns are always {', '.join(names)}: leave .schema(…) out")
