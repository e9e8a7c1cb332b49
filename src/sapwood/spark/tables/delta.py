"""A Delta table through `deltalake`: files and the batch's number in one entry of Delta's log."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import TableNotFoundError
from deltalake.schema import Schema
from deltalake.transaction import AddAction, RemoveAction

from sapwood.spark.tables.base import Table
from sapwood.spark.tables.files import DATE, DataFile, room_needed
from sapwood.spark.tables.schemas import has_part, ordinary_schema

# Delta keeps the state of applications for as long as the table lives, and so it must be here.
_CONFIGURATION = {"delta.checkpointInterval": "50"}


class LakeTable(Table):
    def __init__(self, root: Path, name: str) -> None:
        super().__init__(root, name)
        self._table = self._found()

    @property
    def schema(self) -> pa.Schema | None:
        if self._table is None:
            return None
        schema = ordinary_schema(pa.schema(self._table.schema().to_arrow()))
        return schema.remove(schema.get_field_index(DATE))

    def last_batch(self, query: str) -> int:
        if self._table is None:
            return -1
        self._table.update_incremental()
        found = self._table.transaction_version(query)
        return -1 if found is None else found

    def files(self, date: str | None = None) -> list[DataFile]:
        if self._table is None:
            return []
        actions = pa.table(self._table.get_add_actions(flatten=True))
        return sorted(
            DataFile(str(self.folder / row["path"]), day, row["num_records"], row["size_bytes"])
            for row in actions.to_pylist()
            if (day := str(row[f"partition.{DATE}"])) == date or date is None
        )

    def _append(
        self, query: str, batch: int, staged: Sequence[DataFile], schema: pa.Schema
    ) -> None:
        with room_needed(self.folder):
            table = self._with_columns(schema)
            added = [self._addition(file) for file in self._take_over(staged, f"{batch:010}")]
            self._write(
                table, added, CommitProperties(app_transactions=[Transaction(query, batch)])
            )

    def _replace(self, date: str, small: Sequence[DataFile], merged: DataFile) -> bool:
        if self._table is None:
            return False
        now_ms = int(time.time() * 1000)
        with room_needed(self.folder):
            removed = [
                RemoveAction(
                    self._relative(file), False, now_ms, file.size_bytes, {DATE: file.date}
                )
                for file in small
            ]
            (file,) = self._take_over([merged], "merged")
            added = self._addition(file, is_news=False)
            self._write(self._table, [*removed, added], CommitProperties())
            self._table.vacuum(dry_run=False)  # what nobody has used for a week
        return True

    def _found(self) -> DeltaTable | None:
        try:
            return DeltaTable(self.folder)
        except TableNotFoundError:
            return None

    def _with_columns(self, schema: pa.Schema) -> DeltaTable:
        """The table with all of these columns; who reads the others won't notice."""
        known = self.schema
        if self._table is None:
            whole = Schema.from_arrow(schema.append(pa.field(DATE, pa.date32())))
            self._table = DeltaTable.create(
                self.folder, whole, partition_by=[DATE], configuration=_CONFIGURATION
            )
        elif known is not None and not has_part(known, schema):
            fresh = pa.schema([field for field in schema if not has_part(known, [field])])
            self._table.alter.add_columns(Schema.from_arrow(fresh).fields)
        return self._table

    def _write(
        self,
        table: DeltaTable,
        actions: Sequence[AddAction | RemoveAction],
        properties: CommitProperties,
    ) -> None:
        table.create_write_transaction(
            list(actions),
            "append",
            table.schema(),
            partition_by=[DATE],
            commit_properties=properties,
        )
        table.update_incremental()

    def _addition(self, file: DataFile, *, is_news: bool = True) -> AddAction:
        now_ms = int(time.time() * 1000)
        stats = json.dumps({"numRecords": file.rows})
        relative = self._relative(file)
        return AddAction(relative, file.size_bytes, {DATE: file.date}, now_ms, is_news, stats)

    def _relative(self, file: DataFile) -> str:
        return Path(file.path).relative_to(self.folder).as_posix()
