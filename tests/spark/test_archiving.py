"""The driver's part of `archive` on real Spark: batches, as a stream hands them over, to tables."""

import datetime
import json
from collections.abc import Callable, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from sapwood.bulk import BulkClient
from sapwood.pytest_plugin import SharedCluster
from sapwood.spark.archiving import Archive, settled
from sapwood.spark.dead_letters import DeadLetters
from sapwood.spark.decoding import SCHEMA_WITH_HEADERS
from sapwood.spark.tables import FORMATS, WrongTable, open_table
from sapwood.spark.values import ValueFormat
from tests.helpers import unique
from tests.spark.test_tables import read

# Spark starts a JVM and a Python for every step: on a busy machine that takes its time.
pytestmark = pytest.mark.timeout(600)

AT = datetime.datetime(2026, 11, 18, 12, tzinfo=datetime.UTC)
JSON = ValueFormat("json")

Take = Callable[..., None]


@pytest.fixture
def take(spark: SparkSession) -> Take:
    """A batch of a stream; each list of records is a task's."""

    def batch(archive: Archive, number: int, *tasks: pa.Table, query: str = "a-query") -> None:
        spark.sparkContext.setLocalProperty("sql.streaming.queryId", query)
        frames = [spark.createDataFrame(task).coalesce(1) for task in tasks]
        archive.take(reduce(DataFrame.union, frames), number)

    return batch


def records(
    topic: str, values: Sequence[Any], partition: int = 0, first_offset: int = 0
) -> pa.Table:
    """As the source reads them."""
    raw = [it if isinstance(it, bytes | None) else json.dumps(it).encode() for it in values]
    count = len(raw)
    columns = [
        [b"k"] * count,
        raw,
        [topic] * count,
        [partition] * count,
        range(first_offset, first_offset + count),
        [AT] * count,
        [0] * count,
        [None] * count,
    ]
    return pa.table(
        [pa.array(it, field.type) for it, field in zip(columns, SCHEMA_WITH_HEADERS, strict=True)],
        schema=SCHEMA_WITH_HEADERS,
    )


@pytest.mark.parametrize("kind", FORMATS)
def test_json_becomes_columns_which_grow_and_bad_records_are_put_aside(
    take: Take, sapwood_cluster: SharedCluster, tmp_path: Path, kind: str
) -> None:
    topic, bootstrap = unique("orders"), sapwood_cluster.bootstrap
    take = partial(take, query=unique("query"))  # the cluster remembers queries
    start = partial(Archive, tmp_path, kind, JSON, dead_letters=DeadLetters(bootstrap))
    # Both tasks meet a new column, and disagree on what it is.
    one = records(topic, [{"id": 1, "size": 1}, b"what?", None])
    other = records(topic, [{"id": 2, "size": 1.5}, {"id": 3, "size": "x"}], 1)
    take(start(), 0, one, other)
    archive = start()
    take(archive, 0, one, other)  # the driver was killed before Spark knew that it was done
    take(archive, 1, records(topic, [{"id": 4, "place": {"lat": 1.0}}, {"id": "x"}], 0, 3))
    table = open_table(tmp_path, topic, kind)
    schema = table.schema
    assert schema is not None
    found = ds.dataset([file.path for file in table.files()], schema).to_table()
    found = found.sort_by([("_partition", "ascending"), ("_offset", "ascending")])
    assert found.select(["_partition", "_offset", "id", "size"]).to_pylist() == [
        {"_partition": 0, "_offset": 0, "id": 1, "size": 1.0},
        {"_partition": 0, "_offset": 2, "id": None, "size": None},
        {"_partition": 0, "_offset": 3, "id": 4, "size": None},
        {"_partition": 1, "_offset": 0, "id": 2, "size": 1.5},
    ]
    assert found.column("place").to_pylist() == [None, None, {"lat": 1.0}, None]
    assert found.column("_key").to_pylist() == [b"k"] * 4
    dead = read(tmp_path, kind, f"{topic}.dead").select(["partition", "offset", "value", "reason"])
    reasons = {(row["partition"], row["offset"]): row["reason"] for row in dead.to_pylist()}
    assert dead.num_rows == 3
    assert reasons.keys() == {(0, 1), (0, 4), (1, 1)}
    assert reasons[0, 4] == "id is a string, where it was a long"
    with BulkClient(bootstrap) as client:
        letters = client.fetch_arrow(f"{topic}.dead", 0, with_headers=True).to_pylist()
    values = [letter["value"] for letter in letters]
    assert sorted(values) == sorted([b"what?", b'{"id": "x"}', b'{"id": 3, "size": "x"}'])
    headers = {header["key"]: header["value"] for header in letters[-1]["headers"]}
    assert (headers["sapwood-topic"], headers["sapwood-offset"]) == (topic.encode(), b"4")
    assert headers["sapwood-reason"] == b"id is a string, where it was a long"


def test_raw_records_are_kept_as_they_are_in_a_folder_that_anybody_can_read(
    take: Take, spark: SparkSession, tmp_path: Path
) -> None:
    archive = Archive(tmp_path, "parquet", ValueFormat())
    numbers = [b"%d" % number for number in range(1000)]
    for batch in range(9):  # enough for small files to be merged
        first = batch * 1000
        take(archive, batch, *(records("a", numbers, it, first) for it in (0, 1)))
    take(archive, 9, records("b", numbers))
    found = spark.read.parquet(str(tmp_path / "a"))
    assert found.count() == found.select("partition", "offset").distinct().count() == 18_000
    names = ["key", "value", "partition", "offset", "timestamp", "timestampType", "headers", "date"]
    assert found.columns == names
    assert len(open_table(tmp_path, "a", "parquet").files()) < 10
    assert spark.read.parquet(str(tmp_path / "b")).count() == 1000
    # Another query doesn't know what is in there already.
    with pytest.raises(WrongTable, match="belong to another run"):
        take(Archive(tmp_path, "parquet", ValueFormat()), 0, records("a", numbers), query="other")
    with pytest.raises(WrongTable, match="are of the format parquet, not delta"):
        take(Archive(tmp_path, "delta", ValueFormat()), 0, records("a", numbers), query="other")


def test_who_wants_no_bad_record_is_stopped_at_the_first_and_nothing_is_added(
    take: Take, tmp_path: Path
) -> None:
    batch = records("strict", [{"id": 1}, b"what?"])
    with pytest.raises(PySparkException, match=r"partition 0, offset 1: not JSON"):
        take(Archive(tmp_path, "parquet", JSON, stop_at_bad=True), 0, batch)
    assert not (tmp_path / "strict").exists()
    take(Archive(tmp_path, "parquet", JSON), 0, batch)
    assert read(tmp_path, "parquet", "strict").num_rows == 1


def test_of_two_types_without_a_common_one_the_first_stays() -> None:
    known = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    met = pa.schema([("a", pa.string()), ("b", pa.float64()), ("c", pa.bool_())])
    expected = pa.schema([("a", pa.int64()), ("b", pa.float64()), ("c", pa.bool_())])
    assert settled(known, met) == expected
