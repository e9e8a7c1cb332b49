"""`archive` into tables of all formats while its processes and the brokers' nodes are killed.

As `spark_once`, with tables in the place of the second topic, one for each format, all archived by
the same driver. They are read as others read them: the numbers of the topic are in each, once.
"""

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyiceberg.exceptions import NoSuchTableError

from chaos.spark_once import Options, Outcome, Run, Say
from sapwood.spark.tables.iceberg import NAMESPACE, open_catalog

TOPIC = "in"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOptions(Options):
    formats: tuple[str, ...]

    @property
    def command(self) -> str:
        formats = "".join(f"--format {each} " for each in self.formats)
        return (
            f"python -m chaos archive-once {formats}--seed {self.seed} "
            f"--seconds {self.seconds:g} --drivers {self.drivers}"
        )


class ArchiveRun(Run):
    module = "chaos.archive_driver"

    def __init__(self, options: ArchiveOptions, directory: Path, say: Say) -> None:
        super().__init__(options, directory, say)
        self._formats = options.formats
        self._tables = directory / "tables"

    def _arguments(self) -> list[str]:
        where = [self._cluster.bootstrap, TOPIC, str(self._tables), str(self._checkpoint)]
        return [*where, "--formats", ",".join(self._formats)]

    def _checkpoints(self) -> list[Path]:
        return [self._checkpoint / each for each in self._formats]

    def _found(self) -> dict[str, dict[bytes, list[int]]]:
        return {each: _numbers(self._tables / each, each) for each in self._formats}


def archive_once(options: ArchiveOptions, directory: Path, say: Say = lambda _: None) -> Outcome:
    return ArchiveRun(options, directory, say).go()


def _numbers(tables: Path, kind: str) -> dict[bytes, list[int]]:
    """By key, and in the order of the log: rows of a table have none of their own."""
    rows = _read(tables, kind)
    found: dict[bytes, list[int]] = {}
    if rows is not None:
        rows = rows.sort_by([("partition", "ascending"), ("offset", "ascending")])
        keys, values = rows.column("key").to_pylist(), rows.column("value").to_pylist()
        for key, value in zip(keys, values, strict=True):
            found.setdefault(key, []).append(int(value))
    return found


def _read(tables: Path, kind: str) -> pa.Table | None:
    """The table without any code of ours; none if there isn't one yet, or it changed meanwhile."""
    columns = ["key", "value", "partition", "offset"]
    try:
        if kind == "delta":
            return DeltaTable(tables / TOPIC).to_pyarrow_table(columns=columns)
        if kind == "iceberg":
            stored = open_catalog(tables).load_table((NAMESPACE, TOPIC))
            return stored.scan(selected_fields=tuple(columns)).to_arrow()
        return ds.dataset(tables / TOPIC, partitioning="hive").to_table(columns)
    except (TableNotFoundError, NoSuchTableError, FileNotFoundError, pa.ArrowInvalid):
        return None
