"""Tables without jars: folders of Parquet files, as they are or as a Delta or Iceberg table.

In: files that tasks have written into a staging folder, each for one date. Out: the same files, as
part of the table, all of a micro-batch or none. A batch is known by its query and number, and the
table remembers the last one itself, in the same act: a batch that comes again changes nothing.
Always: nobody who reads the table sees a record twice, also while small files are merged; what a
killed driver left half-done is finished, or forgotten, by the next one; columns are added and
widened, never dropped; a staged file that no commit names is never seen.
"""

from __future__ import annotations

from pathlib import Path

from sapwood.spark.tables.base import FORMATS, Table, WrongTable
from sapwood.spark.tables.files import DataFile, NoRoom, Rows

__all__ = ["FORMATS", "DataFile", "NoRoom", "Rows", "Table", "WrongTable", "open_table"]


def open_table(root: Path, name: str, kind: str) -> Table:
    """The table of this name in a folder of tables; it is made with its first files.

    What a killed writer had decided and not done is done first.
    """
    # Here and not above: nobody needs three formats, and two of them take their time to import.
    if kind == "parquet":
        from sapwood.spark.tables.plain import PlainTable

        return PlainTable(root, name)
    if kind == "delta":
        from sapwood.spark.tables.delta import LakeTable

        return LakeTable(root, name)
    if kind == "iceberg":
        from sapwood.spark.tables.iceberg import IcebergTable

        return IcebergTable(root, name)
    raise WrongTable(f"there is no format {kind}: it is one of {', '.join(FORMATS)}")
