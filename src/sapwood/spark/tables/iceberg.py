"""An Iceberg table through `pyiceberg`, in a catalogue that is one SQLite file beside the tables.

Files, new columns and the number of the batch become part of the table in one swap of its metadata.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io.pyarrow import parquet_files_to_data_files, schema_to_pyarrow
from pyiceberg.table import FileScanTask
from pyiceberg.table import Table as Stored

from sapwood.spark.tables.base import Table
from sapwood.spark.tables.files import DATE, DataFile, room_needed
from sapwood.spark.tables.schemas import has_part, ordinary_schema

CATALOG = "@iceberg.db"
NAMESPACE = "sapwood"

# Metadata is written anew with every commit: what nobody will ask for is left out of it.
_PROPERTIES = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "50",
    # Whoever was overtaken must look again whether its batch is there already.
    "commit.retry.num-retries": "0",
}
_BATCH = "sapwood.batch."
_KEEP_SNAPSHOTS_S = 24 * 3600


class IcebergTable(Table):
    keeps_date = True  # a file is told from its own columns where it belongs

    def __init__(self, root: Path, name: str) -> None:
        super().__init__(root, name)
        root.mkdir(parents=True, exist_ok=True)
        self._catalog = open_catalog(root)
        self._catalog.create_namespace_if_not_exists(NAMESPACE)
        try:
            self._table: Stored | None = self._catalog.load_table((NAMESPACE, name))
        except NoSuchTableError:
            self._table = None

    @property
    def schema(self) -> pa.Schema | None:
        if self._table is None:
            return None
        schema = ordinary_schema(schema_to_pyarrow(self._table.schema(), include_field_ids=False))
        return schema.remove(schema.get_field_index(DATE))

    def last_batch(self, query: str) -> int:
        if self._table is None:
            return -1
        return int(self._table.refresh().properties.get(f"{_BATCH}{query}", -1))

    def files(self, date: str | None = None) -> list[DataFile]:
        if self._table is None:
            return []
        tasks = self._table.scan().plan_files() if date is None else self._tasks(date)
        return sorted(
            DataFile(
                task.file.file_path.removeprefix("file://"),
                Path(task.file.file_path).parent.name.removeprefix("date="),
                task.file.record_count,
                task.file.file_size_in_bytes,
            )
            for task in tasks
        )

    def _append(
        self, query: str, batch: int, staged: Sequence[DataFile], schema: pa.Schema
    ) -> None:
        known = self.schema
        with room_needed(self.folder):
            taken = self._take_over(staged, f"{batch:010}")
            table = self._table or self._made(schema)
            key = f"{_BATCH}{query}"
            with table.transaction() as transaction:
                if known is not None and not has_part(known, schema):
                    with transaction.update_schema() as update:
                        update.union_by_name(schema)
                transaction.set_properties({key: str(batch)})
                transaction.add_files(
                    [file.path for file in taken],
                    snapshot_properties={key: str(batch)},
                    check_duplicate_files=False,
                )
            self._table = table

    def _replace(self, date: str, small: Sequence[DataFile], merged: DataFile) -> bool:
        if self._table is None:
            return False
        gone = {file.path for file in small}
        with room_needed(self.folder):
            (file,) = self._take_over([merged], "merged")
            tasks = self._tasks(date)
            with self._table.transaction() as transaction:
                metadata = transaction.table_metadata
                with transaction.update_snapshot().overwrite() as update:
                    for task in tasks:
                        if task.file.file_path.removeprefix("file://") in gone:
                            update.delete_data_file(task.file)
                    (added,) = parquet_files_to_data_files(
                        self._table.io, metadata, iter([file.path])
                    )
                    update.append_data_file(added)
        for old in small:
            os.utime(old.path)  # from now on it is old
        self._forget(date)
        return True

    def _tasks(self, date: str) -> Iterable[FileScanTask]:
        if self._table is None:
            return ()
        return self._table.scan(row_filter=f"{DATE} = '{date}'").plan_files()

    def _forget(self, date: str) -> None:
        """Snapshots of former days, and files that only those named or that nobody ever did."""
        if self._table is None:
            return
        now_s = time.time()
        until = datetime.datetime.fromtimestamp(now_s - _KEEP_SNAPSHOTS_S, datetime.UTC)
        self._table.maintenance.expire_snapshots().older_than(until).commit()
        needed = {file.path for file in self.files(date)}
        for path in self._folder_of(date).glob("*.parquet"):
            if str(path) not in needed and path.stat().st_mtime < now_s - 2 * _KEEP_SNAPSHOTS_S:
                path.unlink(missing_ok=True)

    def _made(self, schema: pa.Schema) -> Stored:
        whole = schema.append(pa.field(DATE, pa.date32()))
        with (
            self._catalog.create_table_transaction(
                (NAMESPACE, self.name), whole, str(self.folder), properties=_PROPERTIES
            ) as transaction,
            transaction.update_spec() as spec,
        ):
            spec.add_identity(DATE)
        return self._catalog.load_table((NAMESPACE, self.name))


def open_catalog(root: Path) -> SqlCatalog:
    """The catalogue of a folder of tables, as other programs open it."""
    return SqlCatalog(NAMESPACE, uri=f"sqlite:///{root / CATALOG}", warehouse=str(root))
