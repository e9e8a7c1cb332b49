"""Columns of numbers as bytes: many at once, the same on every machine."""

from __future__ import annotations

import struct
import sys
from array import array


def pack(column: array[int]) -> bytes:
    if sys.byteorder == "little":
        column = column[:]
        column.byteswap()
    return column.tobytes()


def unpack(kind: str, count: int, data: bytes, position: int) -> tuple[array[int], int]:
    """A column that `pack` made, and where it ends."""
    column: array[int] = array(kind)
    end = position + count * column.itemsize
    if end > len(data):
        raise struct.error(f"{count} numbers of {column.itemsize} bytes don't fit")
    column.frombytes(data[position:end])
    if sys.byteorder == "little":
        column.byteswap()
    return column, end
