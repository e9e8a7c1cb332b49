"""The driver's part of `archive`: each micro-batch becomes part of its topics' tables, once.

Tasks stage files (`staging`); when all are there, each table takes its own over, under the query's
id and the batch's number. A driver that is killed between two tables gets the same batch again: the
first table knows it, and the second takes it. Between batches small files are merged.
"""

from __future__ import annotations

import functools
import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from sapwood.spark.staging import LINES_DDL, Plan, Staged, read_lines, stage
from sapwood.spark.tables import Table, WrongTable, open_table
from sapwood.spark.tables.base import STAGING
from sapwood.spark.tables.files import room_needed
from sapwood.spark.tables.schemas import CannotWiden, has_part, merge, to_bytes
from sapwood.spark.values import ValueFormat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sapwood.spark.dead_letters import DeadLetters

OWNER = "@archive.json"

# Tasks that met new columns at the same time may disagree on their types once; told what the others
# have met, they don't.
_MOST_ROUNDS = 3
# Small files are looked for not with every batch.
_COMPACT_EVERY = 8

log = logging.getLogger("sapwood.spark")


class Disagreement(RuntimeError):
    """Tasks found different columns in the same records, again and again."""


class Archive:
    """A folder of tables, one for each topic."""

    def __init__(
        self,
        root: Path,
        kind: str,
        values: ValueFormat,
        *,
        stop_at_bad: bool = False,
        dead_letters: DeadLetters | None = None,
    ) -> None:
        self._root, self._kind, self._values = root.absolute(), kind, values
        self._may_be_bad = not stop_at_bad
        self._dead_letters = dead_letters
        self._tables: dict[str, Table] = {}
        self._owner: str | None = None
        self._touched: set[tuple[str, str]] = set()

    def take(self, batch: DataFrame, number: int) -> None:
        """One micro-batch, as `foreachBatch` hands it over."""
        context = batch.sparkSession.sparkContext
        query = context.getLocalProperty("sql.streaming.queryId")
        if query is None:
            raise RuntimeError("Spark doesn't say which query this is")
        with room_needed(self._root):
            self._claim(query)
            staging = self._root / STAGING / query
            shutil.rmtree(staging, ignore_errors=True)  # of attempts that came to nothing
            (staging / str(number)).mkdir(parents=True)
        staged, schemas = self._staged(batch, staging / str(number))
        if self._dead_letters is not None:
            dead = [each for each in staged if each.is_dead]
            self._dead_letters.send(query, number, dead)
        self.commit(query, number, staged, schemas)
        shutil.rmtree(staging, ignore_errors=True)
        if number % _COMPACT_EVERY == 0:
            self.compact()

    def commit(
        self, query: str, number: int, staged: Sequence[Staged], schemas: Mapping[str, pa.Schema]
    ) -> None:
        for name in sorted(schemas):
            files = [each.file for each in staged if each.table == name]
            self._table(name).commit(query, number, files, schemas[name])
            self._touched.update((name, file.date) for file in files)

    def compact(self) -> None:
        """Merge small files, of the dates that got some since the last time."""
        touched, self._touched = sorted(self._touched), set()
        for name, date in touched:
            count = self._table(name).compact(date)
            if count:
                log.info("%s, %s: merged %d small files", name, date, count)

    def _staged(self, batch: DataFrame, folder: Path) -> tuple[list[Staged], dict[str, pa.Schema]]:
        schemas = {
            name: table.schema for name, table in self._tables.items() if table.schema is not None
        }
        with_date = self._kind == "iceberg"
        for turn in range(_MOST_ROUNDS):
            plan = Plan(
                folder=folder / str(turn),
                values=self._values,
                schemas={name: to_bytes(schema) for name, schema in schemas.items()},
                with_date=with_date,
                may_be_bad=self._may_be_bad,
            )
            lines = batch.mapInArrow(functools.partial(stage, plan=plan), LINES_DDL).toArrow()
            staged = read_lines(lines)
            found: dict[str, pa.Schema] = {}
            for each in staged:
                known = found.get(each.table, schemas.get(each.table, pa.schema([])))
                found[each.table] = settled(known, each.schema)
            if all(has_part(found[each.table], each.schema) for each in staged):
                return staged, found
            schemas |= found
            shutil.rmtree(plan.folder)
        raise Disagreement("tasks don't agree on the columns of the same records: report this")

    def _table(self, name: str) -> Table:
        if name not in self._tables:
            self._tables[name] = open_table(self._root, name, self._kind)
        return self._tables[name]

    def _claim(self, query: str) -> None:
        """These tables belong to one query: another one would add everything a second time."""
        if self._owner == query:
            return
        claim(self._root / OWNER, query, self._kind)
        self._owner = query
        for folder in sorted(self._root.iterdir()):
            if folder.is_dir() and not folder.name.startswith("@"):
                self._table(folder.name)


def claim(path: Path, query: str, kind: str) -> None:
    """WrongTable if the tables beside this file are those of another query."""
    root = path.parent
    root.mkdir(parents=True, exist_ok=True)
    mine = json.dumps({"query": query, "format": kind})
    try:
        with path.open("x") as file:
            file.write(mine)
    except FileExistsError:
        text = path.read_text()
        if not text:  # who made it was killed before it wrote its name
            path.write_text(mine)
            return
        there = json.loads(text)
        if there["format"] != kind:
            raise WrongTable(
                f"the tables in {root} are of the format {there['format']}, not {kind}: choose "
                "another folder"
            ) from None
        if there["query"] != query:
            raise WrongTable(
                f"the tables in {root} belong to another run, whose positions this one doesn't "
                "know: run that one, or choose another folder"
            ) from None


def settled(known: pa.Schema, met: pa.Schema) -> pa.Schema:
    """The columns of both. Of two that have no common type the first stays."""
    columns = {field.name: field.type for field in known}
    for field in met:
        try:
            there = columns.get(field.name)
            columns[field.name] = field.type if there is None else merge(there, field.type)
        except CannotWiden:
            pass
    return pa.schema(list(columns.items()))
