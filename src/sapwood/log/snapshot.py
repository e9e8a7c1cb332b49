"""Producers and epochs as of some offset, so that a restart replays only what came after.

A snapshot is written once the log is durable up to its offset. It isn't synced itself: one that a
crash damaged is recognised by its CRC, and an older one or the log itself takes its place.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from typing import NamedTuple

from crc32c import crc32c

from sapwood.disk import Disk, replace
from sapwood.log.epochs import EpochList
from sapwood.log.producers import ProducerTable
from sapwood.log.state import LogState

logger = logging.getLogger(__name__)

SUFFIX = ".producers"
_HEADER = struct.Struct(">4sHHIqqI")  # magic, version, reserved, crc, timeline, offset, epochs
_CRC_END = 12
_EPOCH = struct.Struct(">iq")
_MAGIC = b"SAPP"
_VERSION = 1
# A restart replays at most about this much.
_INTERVAL_BYTES = 64 << 20
_INTERVAL_BATCHES = 32_000
# One more than needed, in case a power cut takes the newest.
_KEPT = 2


class Snapshot(NamedTuple):
    offset: int
    timeline: int
    producers: ProducerTable
    epochs: EpochList

    def encode(self) -> bytes:
        starts = self.epochs.starts
        body = b"".join(
            [_EPOCH.pack(epoch, start) for epoch, start in starts] + [self.producers.encode()]
        )
        fields = struct.pack(">qqI", self.timeline, self.offset, len(starts))
        start = struct.pack(">4sHHI", _MAGIC, _VERSION, 0, crc32c(body, crc32c(fields)))
        return start + fields + body


def decode(data: bytes) -> Snapshot | None:
    """None if it is damaged or of a version that this program doesn't know."""
    if len(data) < _HEADER.size:
        return None
    magic, version, _, crc, timeline, offset, epochs = _HEADER.unpack_from(data)
    if magic != _MAGIC or version != _VERSION or crc32c(data[_CRC_END:]) != crc:
        return None
    producers = _HEADER.size + epochs * _EPOCH.size
    starts = [(epoch, at) for epoch, at in _EPOCH.iter_unpack(data[_HEADER.size : producers])]
    return Snapshot(offset, timeline, ProducerTable.decode(data[producers:]), EpochList(starts))


class SnapshotWriter:
    """Takes a snapshot now and then and writes it as soon as the log behind it is durable."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._bytes = 0
        self._batches = 0
        self._pending: dict[int, bytes] = {}
        self._newest: int | None = None

    def appended(self, size: int) -> bool:
        """Count a batch; True if a snapshot is due."""
        self._bytes += size
        self._batches += 1
        return self._bytes >= _INTERVAL_BYTES or self._batches >= _INTERVAL_BATCHES

    def take(self, snapshot: Snapshot) -> None:
        self._bytes = self._batches = 0
        self._pending[snapshot.offset] = snapshot.encode()

    def forget(self) -> None:
        self._pending.clear()

    def write(self, durable_end: int) -> None:
        """Write the newest that was taken within the durable part of the log. Best effort."""
        ready = [offset for offset in self._pending if offset <= durable_end]
        if not ready:
            return
        offset = max(ready)
        data = self._pending[offset]
        for done in ready:
            del self._pending[done]
        try:
            replace(self._disk, _path(self._directory, offset), [data], durable=False)
            self._newest = offset
            for stale in _offsets(self._disk, self._directory)[:-_KEPT]:
                self._disk.remove(_path(self._directory, stale))
        except OSError as error:
            logger.warning("no snapshot of %s was written: %s", self._directory, error)

    def make_durable(self) -> Callable[[], None]:
        """Work to be done off the loop: sync what was written last."""
        path = None if self._newest is None else _path(self._directory, self._newest)

        def sync() -> None:
            if path is not None and self._disk.exists(path):
                file = self._disk.open(path)
                try:
                    file.sync()
                finally:
                    file.close()

        return sync


def newest(disk: Disk, directory: str, end_offset: int, state: LogState) -> Snapshot | None:
    """The newest snapshot that holds for this log; the newer ones that don't are removed."""
    for offset in reversed(_offsets(disk, directory)):
        path = _path(directory, offset)
        file = disk.open(path, write=False)
        try:
            found = decode(file.pread(file.size, 0))
        finally:
            file.close()
        if found is not None and found.offset <= end_offset:
            behind = state.timeline - found.timeline
            if behind == 0 or (behind == 1 and found.offset <= state.cut_offset):
                return found
        disk.remove(path)
    return None


def _offsets(disk: Disk, directory: str) -> list[int]:
    return sorted(
        int(name.removesuffix(SUFFIX)) for name in disk.list(directory) if name.endswith(SUFFIX)
    )


def _path(directory: str, offset: int) -> str:
    return f"{directory}/{offset:020d}{SUFFIX}"
