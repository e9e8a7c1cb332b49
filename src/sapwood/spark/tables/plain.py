"""A folder of Parquet files that anybody can read, and a log that says which batch was the last.

A commit is one new entry of the log, made under a number that only one writer can take. It says
which staged files get which names; then they get them. Whoever opens the table carries out its last
entry again, so a killed writer's decision is finished and not repeated. A reader that knows nothing
of the log lists `date=…/*.parquet` and finds each record once: nothing has such a name before it
belongs to the table, and small files give way to a merged one by exchanging two folders in one
system call. An entry has the whole state: only the last one counts, and older ones are removed.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import errno
import logging
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from sapwood.spark.tables.base import STAGING, Table, WrongTable, final_name
from sapwood.spark.tables.files import DataFile, room_needed
from sapwood.spark.tables.schemas import from_bytes, to_bytes

LOG = "_sapwood_log"
_FORMAT = 1
_ENTRIES_KEPT = 10

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
# What says that a kernel or a file system can't exchange folders.
_CANNOT = (errno.EINVAL, errno.ENOSYS, errno.EXDEV, errno.EOPNOTSUPP)

log = logging.getLogger("sapwood.spark")


class Swap(msgspec.Struct, frozen=True):
    """A date's folder is exchanged for a staged one, in which one file stands for several."""

    date: str
    staged: str
    merged: str


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A version of the table. Paths are relative to its folder."""

    format: int = _FORMAT
    version: int
    batches: dict[str, int]  # by query, the last one
    schema: str
    moves: list[tuple[str, str]] = []
    swap: Swap | None = None


class PlainTable(Table):
    def __init__(self, root: Path, name: str) -> None:
        super().__init__(root, name)
        self._log = self.folder / LOG
        self._entry: Entry | None = None
        self._refresh()

    @property
    def schema(self) -> pa.Schema | None:
        return None if self._entry is None else from_bytes(base64.b64decode(self._entry.schema))

    def last_batch(self, query: str) -> int:
        self._refresh()
        return -1 if self._entry is None else self._entry.batches.get(query, -1)

    def files(self, date: str | None = None) -> list[DataFile]:
        return [
            DataFile(str(path), path.parent.name.removeprefix("date="), -1, path.stat().st_size)
            for path in sorted(self.folder.glob(f"date={date or '*'}/*.parquet"))
        ]

    def _append(
        self, query: str, batch: int, staged: Sequence[DataFile], schema: pa.Schema
    ) -> None:
        known = self.schema
        before = self._entry
        prefix = f"{batch:010}-{query}"
        entry = Entry(
            version=0 if before is None else before.version + 1,
            batches={**({} if before is None else before.batches), query: batch},
            schema=base64.b64encode(to_bytes(schema)).decode(),
            moves=[
                (self._relative(file.path), f"date={file.date}/{final_name(prefix, number, file)}")
                for number, file in enumerate(staged)
            ],
        )
        self._decide(entry)
        if known is None or not known.equals(schema):
            self._tell_schema(schema)

    def _replace(self, date: str, small: Sequence[DataFile], merged: DataFile) -> bool:
        if self._entry is None or not _can_exchange(self.root / STAGING):
            return False
        staged = self.root / STAGING / f"swap-{uuid.uuid4()}"
        staged.mkdir(parents=True)
        gone = {file.path for file in small}
        for file in self.files(date):
            if file.path not in gone:
                os.link(file.path, staged / Path(file.path).name)
        name = f"merged-{Path(merged.path).stem.removeprefix('merged-')}.parquet"
        Path(merged.path).rename(staged / name)
        swap = Swap(date, self._relative(str(staged)), name)
        before = self._entry
        self._decide(
            Entry(
                version=before.version + 1,
                batches=before.batches,
                schema=before.schema,
                swap=swap,
            )
        )
        return True

    def _refresh(self) -> None:
        newest = self._newest()
        if newest is not None and newest != self._entry:
            self._carry_out(newest)
        self._entry = newest

    def _newest(self) -> Entry | None:
        entries = sorted(self._log.glob("*.json"))
        if not entries:
            if next(self.folder.glob("date=*/*.parquet"), None) is not None:
                raise WrongTable(
                    f"{self.folder} holds Parquet files of somebody else: choose another folder"
                )
            return None
        try:
            entry = msgspec.json.decode(entries[-1].read_bytes(), type=Entry)
        except msgspec.DecodeError as error:
            raise WrongTable(f"{entries[-1]} is damaged: {error}") from None
        if entry.format > _FORMAT:
            raise WrongTable(f"{self.folder} was written by a newer version: update Sapwood")
        return entry

    def _decide(self, entry: Entry) -> None:
        with room_needed(self.folder):
            self._log.mkdir(parents=True, exist_ok=True)
            draft = self._log / f".{uuid.uuid4()}"
            try:
                with draft.open("xb") as file:
                    file.write(msgspec.json.encode(entry))
                    file.flush()
                    os.fsync(file.fileno())
                os.link(draft, self._log / f"{entry.version:020}.json")
            except FileExistsError:
                raise WrongTable(
                    f"somebody else writes to {self.folder}: stop one of both"
                ) from None
            finally:
                draft.unlink(missing_ok=True)
            _sync_folder(self._log)
            self._entry = entry
            self._carry_out(entry)
        for old in sorted(self._log.glob("*.json"))[:-_ENTRIES_KEPT]:
            old.unlink(missing_ok=True)

    def _carry_out(self, entry: Entry) -> None:
        """Do what an entry says, or what is left of it."""
        for staged, final in entry.moves:
            path = self.folder / final
            path.parent.mkdir(exist_ok=True)
            try:
                (self.folder / staged).rename(path)
            except FileNotFoundError:
                if not path.exists():
                    raise WrongTable(
                        f"{path} is missing, and was to come from {self.folder / staged}: "
                        "somebody has removed it"
                    ) from None
        if entry.swap is not None:
            folder, staged_folder = (
                self._folder_of(entry.swap.date),
                self.folder / entry.swap.staged,
            )
            if not (folder / entry.swap.merged).exists():
                _exchange(folder, staged_folder)
            # Who was reading them finds them gone, and says so: better than to see them twice.
            shutil.rmtree(staged_folder, ignore_errors=True)
        _sync_folder(self.folder)

    def _tell_schema(self, schema: pa.Schema) -> None:
        """Where Spark looks for the columns of all files, so that it needn't open each."""
        path = self.folder / "_common_metadata"
        draft = path.with_name(f".{uuid.uuid4()}")
        pq.write_metadata(schema, draft)
        draft.replace(path)

    def _relative(self, path: str) -> str:
        return os.path.relpath(path, self.folder)


def _exchange(one: Path, other: Path) -> None:
    """Two folders get each other's name, at once: there is no moment at which one is missing."""
    libc = ctypes.CDLL(None, use_errno=True)
    rename = getattr(libc, "renameat2", None)  # Linux; elsewhere there is none
    if rename is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    arguments = (_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    if rename(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(one))


def _can_exchange(folder: Path) -> bool:
    with _empty_folder(folder) as one, _empty_folder(folder) as other:
        try:
            _exchange(one, other)
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
            log.info("small files stay as they are: folders at %s can't be exchanged", folder)
            return False
    return True


@contextlib.contextmanager
def _empty_folder(parent: Path) -> Iterator[Path]:
    folder = parent / f"try-{uuid.uuid4()}"
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        folder.rmdir()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
