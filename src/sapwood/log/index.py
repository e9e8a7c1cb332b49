"""The sparse index of a segment: about every four kilobytes, where an entry begins.

A row is (offset relative to the segment's base, position, largest timestamp so far, largest HLC
so far); the last two include the row's own entry and never go back, so one binary search each
serves look-ups by offset, by time and by append time. Markers have no rows.

On disk: a fixed header, then blocks of rows, column by column. The header says `sealed` once the
segment is closed and then sums the segment up. Header and blocks have a CRC each and are never
synced: what a crash damages is built anew from the log.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple

from crc32c import crc32c

from sapwood.disk import Disk

_HEADER = struct.Struct(">4sHHQqqq")  # magic, version, sealed, then the summary
_HEADER_SIZE = _HEADER.size + 4
_MAGIC = b"SAPI"
_VERSION = 1
_BLOCK = struct.Struct(">II")  # crc32c of what follows, number of rows
_ROW_BYTES = 24
# Rows are written in blocks, so that a small append costs no write to a second file.
BLOCK_ROWS = 256


class Summary(NamedTuple):
    """What is to be known about a closed segment without reading it."""

    size: int
    end_offset: int
    max_timestamp: int
    max_hlc: int


class Index:
    __slots__ = ("_file_end", "_saved", "hlcs", "offsets", "positions", "timestamps")

    def __init__(self) -> None:
        self.offsets: array[int] = array("I")
        self.positions: array[int] = array("I")
        self.timestamps: array[int] = array("q")
        self.hlcs: array[int] = array("q")
        self._saved = 0
        self._file_end = 0

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def memory_bytes(self) -> int:
        return len(self.offsets) * _ROW_BYTES

    @property
    def unsaved(self) -> int:
        return len(self.offsets) - self._saved

    def add(self, relative_offset: int, position: int, timestamp: int, hlc: int) -> None:
        self.offsets.append(relative_offset)
        self.positions.append(position)
        self.timestamps.append(timestamp)
        self.hlcs.append(hlc)

    def floor(self, relative_offset: int) -> int:
        """Where to begin to look for an offset."""
        row = bisect_right(self.offsets, relative_offset) - 1
        return self.positions[row] if row >= 0 else 0

    def before(self, relative_offset: int) -> int:
        """A position with nothing at or beyond an offset in front of it, not even a marker."""
        row = bisect_left(self.offsets, relative_offset) - 1
        return self.positions[row] if row >= 0 else 0

    def before_timestamp(self, timestamp: int) -> int:
        """A position with nothing at or after `timestamp` in front of it."""
        row = bisect_left(self.timestamps, timestamp) - 1
        return self.positions[row] if row >= 0 else 0

    def before_hlc(self, hlc: int) -> int:
        row = bisect_left(self.hlcs, hlc) - 1
        return self.positions[row] if row >= 0 else 0

    def cut(self, position: int) -> None:
        """Drop the rows from `position` on. The file keeps them until it is rewritten."""
        self._keep(bisect_left(self.positions, position))

    def cut_offsets(self, relative_offset: int) -> None:
        """Drop the rows from an offset on."""
        self._keep(bisect_left(self.offsets, relative_offset))

    def _keep(self, rows: int) -> None:
        if rows < len(self.offsets):
            for column in (self.offsets, self.positions, self.timestamps, self.hlcs):
                del column[rows:]
            self._saved = self._file_end = 0

    def save(self, disk: Disk, path: str, summary: Summary | None = None) -> None:
        """Write the rows that aren't on disk yet; with a summary, seal the index."""
        if self._file_end and not self.unsaved and summary is None:
            return
        if not self._file_end:
            disk.remove(path)
        rows = slice(self._saved, None)
        columns = [
            _little_endian(column[rows])
            for column in (self.offsets, self.positions, self.timestamps, self.hlcs)
        ]
        body = b"".join((struct.pack(">I", self.unsaved), *columns))
        block = struct.pack(">I", crc32c(body)) + body
        end = self._file_end or _HEADER_SIZE
        file = disk.open(path, create=True)
        try:
            file.pwrite([block], end)
            # The header last: sealed must mean that all rows are there.
            if summary is not None or not self._file_end:
                file.pwrite([_header(summary)], 0)
        finally:
            file.close()
        self._file_end = end + len(block)
        self._saved = len(self.offsets)

    @classmethod
    def load(cls, disk: Disk, path: str) -> tuple[Index, Summary | None]:
        """The rows up to the first damaged block, and the summary if the index is sealed."""
        index = cls()
        data = _read(disk, path)
        if data is None:
            return index, None
        header = _read_header(data)
        if header is None:
            return index, None
        position = _HEADER_SIZE
        while position < len(data):
            if position + _BLOCK.size > len(data):
                return index, None
            crc, rows = _BLOCK.unpack_from(data, position)
            end = position + _BLOCK.size + rows * _ROW_BYTES
            if end > len(data) or crc32c(data[position + 4 : end]) != crc:
                return index, None
            at = position + _BLOCK.size
            for column in (index.offsets, index.positions, index.timestamps, index.hlcs):
                width = column.itemsize * rows
                part = array(column.typecode, data[at : at + width])
                if sys.byteorder == "big":
                    part.byteswap()
                column.extend(part)
                at += width
            position = index._file_end = end
            index._saved = len(index.offsets)
        return index, header[0]

    @staticmethod
    def load_summary(disk: Disk, path: str) -> Summary | None:
        """Only the summary, if the index is sealed."""
        data = _read(disk, path, _HEADER_SIZE)
        header = _read_header(data) if data is not None else None
        return header[0] if header is not None else None


def _little_endian(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def _read(disk: Disk, path: str, length: int | None = None) -> bytes | None:
    try:
        file = disk.open(path, write=False)
    except FileNotFoundError:
        return None
    try:
        return file.pread(file.size if length is None else length, 0)
    finally:
        file.close()


def _header(summary: Summary | None) -> bytes:
    fields = summary or Summary(0, 0, 0, 0)
    start = _HEADER.pack(_MAGIC, _VERSION, summary is not None, *fields)
    return start + struct.pack(">I", crc32c(start))


def _read_header(data: bytes) -> tuple[Summary | None] | None:
    """None if the header is unknown or damaged, else what it says."""
    start = data[: _HEADER.size]
    if len(data) < _HEADER_SIZE or struct.pack(">I", crc32c(start)) != data[len(start) :][:4]:
        return None
    magic, version, sealed, *fields = _HEADER.unpack(start)
    if magic != _MAGIC or version != _VERSION:
        return None
    return (Summary(*fields) if sealed else None,)
