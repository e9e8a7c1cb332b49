"""Whether each value is one JSON object by its brackets: compiled, a byte at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numba import types

from sapwood.spark.kernels import compiled, inlined

_INPUT = types.Array(types.uint8, 1, "C", readonly=True)
_OFFSETS = types.Array(types.int32, 1, "C", readonly=True)
_FLAGS = types.boolean[::1]

_QUOTE, _BACKSLASH = 0x22, 0x5C
_OPEN_OBJECT, _CLOSE_OBJECT, _OPEN_LIST, _CLOSE_LIST = 0x7B, 0x7D, 0x5B, 0x5D


def are_objects(values: pa.BinaryArray, most_levels: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """For each value whether its first bracket opens an object, and its last byte closes that."""
    fine = np.zeros(len(values), np.bool_)
    if len(values):
        _, offsets, data = values.buffers()
        starts = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
        content = np.frombuffer(data if data is not None else b"", np.uint8)
        _look(content, starts, most_levels, fine)
    return fine


@inlined
def _is_space(byte: Any) -> Any:
    return byte == 0x20 or (0x09 <= byte <= 0x0D and byte != 0x0B and byte != 0x0C)


@compiled(types.void(_INPUT, _OFFSETS, types.int64, _FLAGS))
def _look(data: Any, offsets: Any, most_levels: int, fine: Any) -> None:
    for index in range(len(fine)):
        start = offsets[index]
        end = offsets[index + 1]
        while start < end and _is_space(data[start]):
            start += 1
        while end > start and _is_space(data[end - 1]):
            end -= 1
        if end - start < 2 or data[start] != _OPEN_OBJECT or data[end - 1] != _CLOSE_OBJECT:
            continue
        level = 0
        in_text = False
        is_one = True
        position = start
        while position < end:
            byte = data[position]
            if in_text:
                if byte == _BACKSLASH:
                    position += 1
                elif byte == _QUOTE:
                    in_text = False
            elif byte == _QUOTE:
                in_text = True
            elif byte in (_OPEN_OBJECT, _OPEN_LIST):
                level += 1
                if level > most_levels:
                    is_one = False
                    break
            elif byte in (_CLOSE_OBJECT, _CLOSE_LIST):
                level -= 1
                if level <= 0 and position != end - 1:
                    is_one = False
                    break
            position += 1
        fine[index] = is_one and level == 0 and not in_text
