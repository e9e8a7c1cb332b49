"""Tables of every format: a batch once, through crashes at every step, and merged small files."""

import datetime
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from chaos.disk import SmallDisk
from sapwood.spark.tables import (
    FORMATS,
    DataFile,
    NoRoom,
    Rows,
    Table,
    WrongTable,
    open_table,
    plain,
)
from sapwood.spark.tables.base import STAGING
from sapwood.spark.tables.files import iso_date
from sapwood.spark.tables.iceberg import NAMESPACE, open_catalog
from sapwood.spark.tables.schemas import (
    CannotWiden,
    conform,
    has_part,
    merge_schemas,
    widest_schema,
)
from tests.helpers import eventually, unique

DAY = datetime.datetime(2026, 11, 18, tzinfo=datetime.UTC)
QUERY = "a-query"
LONGS = pa.schema([("offset", pa.int64()), ("timestamp", pa.timestamp("us", "UTC"))])
# Every type that staged files have: ours, and the widest of each kind.
EVERY = pa.schema(
    [
        *LONGS,
        ("int", pa.int32()),
        ("binary", pa.binary()),
        ("bool", pa.bool_()),
        ("double", pa.float64()),
        ("decimal", pa.decimal128(20)),
        ("date_", pa.date32()),
        ("list", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("struct", pa.struct([("a", pa.struct([("b", pa.list_(pa.int64()))]))])),
        ("map", pa.map_(pa.string(), pa.int64())),
    ]
)


class Killed(BaseException):
    """As if the process had ended here."""


def numbered(start: int, stop: int, days: int = 1, **more: Sequence[object]) -> pa.Table:
    offsets = list(range(start, stop))
    times = [DAY + datetime.timedelta(days=number % days) for number in offsets]
    schema = LONGS
    table = pa.table([pa.array(offsets), pa.array(times, LONGS.field(1).type)], schema=schema)
    for name, values in more.items():
        table = table.append_column(name, pa.array(values))
    return table


def stage(root: Path, table: Table, rows: pa.Table) -> list[DataFile]:
    name = unique("task")
    staging = root / STAGING / QUERY
    writer = Rows(staging, name, with_date=table.keeps_date, suffix=".staged")
    writer.add(table.name, rows, rows.column("timestamp"))
    return [written.file for written in writer.close()]


def commit(root: Path, kind: str, batch: int, rows: pa.Table) -> bool:
    table = open_table(root, "orders", kind)
    return table.commit(QUERY, batch, stage(root, table, rows), rows.schema)


def read(root: Path, kind: str, name: str = "orders") -> pa.Table:
    """The table as others see it, without any code of ours."""
    if kind == "delta":
        return pa.table(DeltaTable(root / name).to_pyarrow_table())
    if kind == "iceberg":
        return open_catalog(root).load_table((NAMESPACE, name)).scan().to_arrow()
    return ds.dataset(root / name, partitioning="hive").to_table()


def offsets(root: Path, kind: str) -> list[int]:
    return sorted(read(root, kind).column("offset").to_pylist())


@pytest.fixture(params=FORMATS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_batch_that_comes_again_changes_nothing(tmp_path: Path, kind: str) -> None:
    assert commit(tmp_path, kind, 0, numbered(0, 100, days=3))
    assert not commit(tmp_path, kind, 0, numbered(0, 100, days=3))
    assert commit(tmp_path, kind, 1, numbered(100, 150))
    table = open_table(tmp_path, "orders", kind)
    assert (table.last_batch(QUERY), table.last_batch("another")) == (1, -1)
    assert offsets(tmp_path, kind) == list(range(150))
    assert {file.date for file in table.files()} == {"2026-11-18", "2026-11-19", "2026-11-20"}
    assert read(tmp_path, kind).column("date")[0].as_py() is not None


def test_a_table_tells_the_types_that_it_was_made_with(tmp_path: Path, kind: str) -> None:
    table = open_table(tmp_path, "orders", kind)
    rows = pa.table([pa.nulls(1, field.type) for field in EVERY], schema=EVERY)
    rows = rows.set_column(1, "timestamp", pa.array([DAY], EVERY.field(1).type))
    writer = Rows(tmp_path / STAGING, "task", with_date=table.keeps_date, suffix=".staged")
    writer.add("orders", rows, rows.column("timestamp"))
    (written,) = writer.close()
    assert written.schema == EVERY
    table.commit(QUERY, 0, [written.file], written.schema)
    for each in (table, open_table(tmp_path, "orders", kind)):
        schema = each.schema
        assert schema is not None
        assert schema.names == EVERY.names
        assert has_part(schema, EVERY)
        assert has_part(EVERY, schema)


def test_what_no_commit_names_is_never_seen(tmp_path: Path, kind: str) -> None:
    commit(tmp_path, kind, 0, numbered(0, 10))
    table = open_table(tmp_path, "orders", kind)
    stage(tmp_path, table, numbered(10, 20))  # a task whose driver was killed
    assert commit(tmp_path, kind, 1, numbered(10, 20))
    assert offsets(tmp_path, kind) == list(range(20))


def test_columns_are_added_and_old_rows_have_none(tmp_path: Path, kind: str) -> None:
    deep = [{"a": 1}] * 10
    deeper = [{"a": 2, "b": "x"}] * 10
    commit(tmp_path, kind, 0, numbered(0, 10, place=deep))
    commit(tmp_path, kind, 1, numbered(10, 20, place=deeper, price=[1.5] * 10))
    commit(tmp_path, kind, 2, numbered(20, 30, place=deep))
    table = open_table(tmp_path, "orders", kind)
    schema = table.schema
    assert schema is not None
    assert schema.names == ["offset", "timestamp", "place", "price"]
    assert schema.field("place").type == pa.struct([("a", pa.int64()), ("b", pa.string())])
    if kind != "parquet":  # a folder has no schema of its own: its readers bring one
        rows = {row["offset"]: row for row in read(tmp_path, kind).to_pylist()}
        assert (rows[0]["price"], rows[10]["price"], rows[20]["price"]) == (None, 1.5, None)
        assert rows[10]["place"] == {"a": 2, "b": "x"}
    dataset = ds.dataset([file.path for file in table.files()], schema=schema)
    assert dataset.to_table(columns=["offset", "price"]).num_rows == 30
    assert table.compact("2026-11-18", fewest=3) == 3
    assert len(table.files()) == 1
    rows = {row["offset"]: row for row in read(tmp_path, kind).to_pylist()}
    assert (rows[0]["place"], rows[10]["place"]) == ({"a": 1, "b": None}, {"a": 2, "b": "x"})


def test_small_files_are_merged_and_no_row_is_lost_or_doubled(tmp_path: Path, kind: str) -> None:
    for batch in range(5):
        commit(tmp_path, kind, batch, numbered(batch * 10, batch * 10 + 10, days=2))
    table = open_table(tmp_path, "orders", kind)
    assert table.compact("2026-11-18") == 0
    assert table.compact("2026-11-18", fewest=4) == 5
    assert len(table.files("2026-11-18")) == 1
    assert len(table.files("2026-11-19")) == 5
    assert offsets(tmp_path, kind) == list(range(50))
    # The table goes on, in this process and in the next.
    table.commit(QUERY, 5, stage(tmp_path, table, numbered(50, 60, days=2)), LONGS)
    assert not commit(tmp_path, kind, 5, numbered(50, 60, days=2))
    assert commit(tmp_path, kind, 6, numbered(60, 70, days=2))
    assert offsets(tmp_path, kind) == list(range(70))


def steps_of(monkeypatch: pytest.MonkeyPatch, kill_at: int) -> None:
    """Let the process be killed before its nth change to the file system."""
    left = [kill_at]

    def count(function: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: object, **options: object) -> object:
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return function(*arguments, **options)

        return counted

    for owner, name in (
        (Path, "rename"),
        (Path, "mkdir"),
        (Path, "unlink"),
        (os, "link"),
        (shutil, "rmtree"),
        (plain, "_exchange"),
        (plain, "_sync_folder"),
        (os, "fsync"),
    ):
        monkeypatch.setattr(owner, name, count(getattr(owner, name)))


def killed_at_every_step(
    root: Path, work: Callable[[], object], check: Callable[[], None]
) -> Iterator[int]:
    """Run the work again and again, killed one step later each time, until it is done."""
    saved = root.with_name(root.name + "-saved")
    shutil.rmtree(saved, ignore_errors=True)
    shutil.copytree(root, saved)
    for step in range(200):
        shutil.rmtree(root)
        shutil.copytree(saved, root)
        with pytest.MonkeyPatch.context() as patch:
            steps_of(patch, step)
            try:
                work()
                return
            except Killed:
                pass
        check()
        yield step
    raise AssertionError("it takes no end")


def test_a_writer_killed_at_any_step_leaves_a_table_with_each_row_once(
    tmp_path: Path, kind: str
) -> None:
    root = tmp_path / "tables"
    for batch in range(3):
        commit(root, kind, batch, numbered(batch * 10, batch * 10 + 10, days=2))

    def add() -> None:
        commit(root, kind, 3, numbered(30, 40, days=2))

    def added_once() -> None:
        seen = offsets(root, kind)  # before anybody cleans up
        assert len(seen) == len(set(seen))
        commit(root, kind, 3, numbered(30, 40, days=2))
        assert offsets(root, kind) == list(range(40))

    assert len(list(killed_at_every_step(root, add, added_once))) > 3

    def merge() -> None:
        open_table(root, "orders", kind).compact("2026-11-18", fewest=3)

    def merged_or_not() -> None:
        assert offsets(root, kind) == list(range(40))
        open_table(root, "orders", kind)
        assert offsets(root, kind) == list(range(40))

    assert len(list(killed_at_every_step(root, merge, merged_or_not))) > 3


def test_a_reader_of_the_plain_folder_never_sees_a_row_twice_while_files_are_merged(
    tmp_path: Path,
) -> None:
    for batch in range(12):
        commit(tmp_path, "parquet", batch, numbered(batch * 10, batch * 10 + 10))
    stop = threading.Event()
    seen: list[list[int]] = []
    refused = []

    def look() -> None:
        while not stop.is_set():
            try:
                seen.append(offsets(tmp_path, "parquet"))
            except FileNotFoundError as error:  # the files were listed a moment too early
                refused.append(error)

    reader = threading.Thread(target=look)
    reader.start()
    try:
        eventually(lambda: seen)
        table = open_table(tmp_path, "orders", "parquet")
        for fewest in (12, 2, 2, 2, 2, 2):
            assert table.compact("2026-11-18", fewest=fewest)
            batch = table.last_batch(QUERY) + 1
            table.commit(QUERY, batch, stage(tmp_path, table, numbered(0, 0)), LONGS)
            more = numbered(batch * 10, batch * 10 + 10)
            table.commit(QUERY, batch + 1, stage(tmp_path, table, more), LONGS)
    finally:
        stop.set()
        reader.join()
    assert seen
    for rows in seen:
        assert len(rows) == len(set(rows))
        assert set(range(120)) <= set(rows)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = SmallDisk(tmp_path / "disk", size_mib=2)
    yield tmp_path / "disk"
    disk.close(keep=False)


def test_a_full_disk_is_told_and_nothing_is_half_added(small_disk: Path, kind: str) -> None:
    root = small_disk / "tables"
    ballast = small_disk / "ballast"
    assert commit(root, kind, 0, numbered(0, 10))
    rows = numbered(10, 10_010)
    refused = 0
    for room_bytes in range(0, 2**20, 2**15):  # full while staging, while committing, not at all
        with ballast.open("wb") as file:
            free = os.statvfs(small_disk)
            file.write(bytes(max(0, free.f_bavail * free.f_frsize - room_bytes)))
        try:
            commit(root, kind, 1, rows)
            break
        except NoRoom:
            refused += 1
        finally:
            ballast.unlink()
        open_table(root, "orders", kind)  # finishes what was decided
        shutil.rmtree(root / STAGING)
        assert len(offsets(root, kind)) in (10, 10_010)
    assert refused
    assert offsets(root, kind) == list(range(10_010))


def test_of_two_writers_one_fails(tmp_path: Path, kind: str) -> None:
    commit(tmp_path, kind, 0, numbered(0, 10))
    one, other = (open_table(tmp_path, "orders", kind) for _ in range(2))
    one.commit(QUERY, 1, stage(tmp_path, one, numbered(10, 20)), LONGS)
    assert not other.commit(QUERY, 1, stage(tmp_path, other, numbered(10, 20)), LONGS)
    one, other = (open_table(tmp_path, "orders", kind) for _ in range(2))
    one.commit(QUERY, 2, stage(tmp_path, one, numbered(20, 30)), LONGS)
    with pytest.raises(Exception, match=r"somebody else writes|Concurrent|has changed"):
        # As if both had looked at the same time.
        other._append(QUERY, 2, stage(tmp_path, other, numbered(20, 30)), LONGS)
    assert offsets(tmp_path, kind) == list(range(30))


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "orders" / "date=2026-11-18"
    folder.mkdir(parents=True)
    pq.write_table(numbered(0, 1), folder / "x.parquet")
    with pytest.raises(WrongTable, match="somebody else: choose another folder"):
        open_table(tmp_path, "orders", "parquet")
    with pytest.raises(WrongTable, match="one of parquet, delta, iceberg"):
        open_table(tmp_path, "orders", "csv")


def test_what_is_open_and_what_waits_in_a_task_is_bounded(tmp_path: Path) -> None:
    rows = Rows(tmp_path, "task", with_date=False, suffix=".staged")
    many = numbered(0, 1000, days=50)
    rows.add("orders", many, many.column("timestamp"))
    closed = rows.finished()
    assert len(closed) == 34
    assert len(closed) + len(rows.close()) == 50


def test_a_time_that_is_none_counts_as_the_first_or_the_last_day() -> None:
    days = pa.array([-5, None, 0, 2_932_896, 2**31 - 1], pa.int32()).cast(pa.date32())
    assert [iso_date(day) for day in days] == [
        "1970-01-01", "1970-01-01", "1970-01-01", "9999-12-31", "9999-12-31",
    ]  # fmt: skip


def test_types_are_the_widest_of_their_kind_and_merge_where_a_common_one_exists() -> None:
    narrow = pa.schema(
        [
            ("a", pa.int8()),
            ("b", pa.float32()),
            ("c", pa.list_(pa.struct([("d", pa.uint64())]))),
            ("e", pa.timestamp("ms")),
        ]
    )
    wide = widest_schema(narrow)
    assert [str(kind) for kind in wide.types] == [
        "int64",
        "double",
        "list<item: struct<d: decimal128(20, 0)>>",
        "timestamp[us, tz=UTC]",
    ]
    other = pa.schema([("a", pa.float64()), ("f", pa.string())])
    merged = merge_schemas(wide, other)
    assert merged.field("a").type == pa.float64()
    assert merged.names == ["a", "b", "c", "e", "f"]
    table = pa.table(
        {"a": [1, None], "c": [[{"d": None}], None]},
        schema=pa.schema([wide.field("a"), wide.field("c")]),
    )
    conformed = conform(table, merged)
    assert conformed.schema == merged
    assert conformed.column("a").to_pylist() == [1.0, None]
    assert conformed.column("c").to_pylist() == [[{"d": None}], None]
    with pytest.raises(CannotWiden, match="f is a long, where it was a string"):
        merge_schemas(merged, pa.schema([("f", pa.int64())]))
    with pytest.raises(CannotWiden, match="A and a differ in case only"):
        merge_schemas(merged, pa.schema([("A", pa.int64())]))


def test_a_file_that_the_table_has_is_never_replaced(tmp_path: Path, kind: str) -> None:
    table = open_table(tmp_path, "orders", kind)
    for number, query in enumerate(("one", "other")):
        rows = numbered(number * 10, number * 10 + 10)
        writer = Rows(tmp_path / STAGING / query, "0", with_date=table.keeps_date, suffix=".staged")
        writer.add("orders", rows, rows.column("timestamp"))
        files = [written.file for written in writer.close()]
        if kind == "parquet" or query == "one":  # a name in a folder has the query in it
            assert table.commit(query, 0, files, rows.schema)
            continue
        with pytest.raises(WrongTable, match="is there already: somebody else writes to"):
            table.commit(query, 0, files, rows.schema)
    assert offsets(tmp_path, kind) == list(range(20 if kind == "parquet" else 10))
