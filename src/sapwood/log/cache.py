"""Open files and indexes of closed segments, bounded."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from sapwood.disk import File

if TYPE_CHECKING:
    from sapwood.log.index import Index
    from sapwood.log.segment import Segment


class SegmentCache:
    """Least recently used goes first. May be shared by all logs of a node."""

    def __init__(self, max_files: int = 16, max_index_bytes: int = 4 << 20) -> None:
        self._max_files = max_files
        self._max_index_bytes = max_index_bytes
        self._files: OrderedDict[Segment, File] = OrderedDict()
        self._indexes: OrderedDict[Segment, Index] = OrderedDict()
        self._index_bytes = 0

    def file(self, segment: Segment) -> File | None:
        file = self._files.get(segment)
        if file is not None:
            self._files.move_to_end(segment)
        return file

    def keep_file(self, segment: Segment, file: File) -> None:
        self._files[segment] = file
        while len(self._files) > self._max_files:
            self._files.popitem(last=False)[1].close()

    def index(self, segment: Segment) -> Index | None:
        index = self._indexes.get(segment)
        if index is not None:
            self._indexes.move_to_end(segment)
        return index

    def keep_index(self, segment: Segment, index: Index) -> None:
        self._indexes[segment] = index
        self._index_bytes += index.memory_bytes
        # The newest stays, however large: it is about to be used.
        while self._index_bytes > self._max_index_bytes and len(self._indexes) > 1:
            self._index_bytes -= self._indexes.popitem(last=False)[1].memory_bytes

    def drop(self, segment: Segment) -> None:
        file = self._files.pop(segment, None)
        if file is not None:
            file.close()
        index = self._indexes.pop(segment, None)
        if index is not None:
            self._index_bytes -= index.memory_bytes
