"""A ledger as of some position, so that a restart replays only what came after.

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
from sapwood.log.ledger import Ledger
from sapwood.log.producers import ProducerTable
from sapwood.log.state import LogState
from sapwood.log.syncing import Position
from sapwood.log.transactions import TransactionTable

logger = logging.getLogger(__name__)

SUFFIX = ".producers"
_HEADER = struct.Struct(">4sHHIqqI")  # magic, version, reserved, crc, timeline, offset, epochs
_CRC_END = 12
_EPOCH = struct.Struct(">iq")
_COUNT = struct.Struct(">I")
_VOTERS = struct.Struct(">qI")  # offset, length of the value
_MAGIC = b"SAPP"
# Version 1 has no voters, version 2 no transactions.
_VERSION = 3
# A restart replays at most about this much.
_INTERVAL_BYTES = 64 << 20
_INTERVAL_BATCHES = 32_000
# One more than needed, in case a power cut takes the newest.
_KEPT = 2


class Snapshot(NamedTuple):
    offset: int
    timeline: int
    ledger: Ledger

    @property
    def position(self) -> Position:
        return self.ledger.epochs.last, self.offset

    def encode(self) -> bytes:
        starts, voters = self.ledger.epochs.starts, self.ledger.voters
        parts = [_EPOCH.pack(epoch, start) for epoch, start in starts]
        parts.append(_COUNT.pack(len(voters)))
        parts += [_VOTERS.pack(offset, len(value)) + value for offset, value in voters]
        parts += (self.ledger.transactions.encode(), self.ledger.producers.encode())
        body = b"".join(parts)
        fields = struct.pack(">qqI", self.timeline, self.offset, len(starts))
        start = struct.pack(">4sHHI", _MAGIC, _VERSION, 0, crc32c(body, crc32c(fields)))
        return start + fields + body


def decode(data: bytes) -> Snapshot | None:
    """None if it is damaged or of a version that this program doesn't know."""
    try:
        return _decode(data)
    except struct.error:
        return None


def _decode(data: bytes) -> Snapshot | None:
    magic, version, _, crc, timeline, offset, epochs = _HEADER.unpack_from(data)
    known = magic == _MAGIC and 1 <= version <= _VERSION
    if not known or crc32c(data[_CRC_END:]) != crc:
        return None
    position = _HEADER.size + epochs * _EPOCH.size
    starts = [(epoch, at) for epoch, at in _EPOCH.iter_unpack(data[_HEADER.size : position])]
    voters = []
    if version > 1:
        (count,) = _COUNT.unpack_from(data, position)
        position += _COUNT.size
        for _ in range(count):
            said_at, length = _VOTERS.unpack_from(data, position)
            position += _VOTERS.size + length
            voters.append((said_at, data[position - length : position]))
    transactions = TransactionTable()
    if version > 2:
        transactions, position = TransactionTable.decode(data, position)
    producers = ProducerTable.decode(data[position:], old=version <= 2)
    return Snapshot(offset, timeline, Ledger(producers, starts, voters, transactions))


def write(disk: Disk, directory: str, snapshot: Snapshot) -> None:
    """Durably, before this returns."""
    replace(disk, _path(directory, snapshot.offset), [snapshot.encode()])


class SnapshotWriter:
    """Takes a snapshot now and then and writes it as soon as the log behind it is durable."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._bytes = 0
        self._batches = 0
        self._pending: dict[Position, bytes] = {}
        self._newest: int | None = None

    def appended(self, size: int, batches: int = 1) -> bool:
        """Count batches; True if a snapshot is due."""
        self._bytes += size
        self._batches += batches
        return self._bytes >= _INTERVAL_BYTES or self._batches >= _INTERVAL_BATCHES

    def take(self, snapshot: Snapshot) -> None:
        self._bytes = self._batches = 0
        self._pending[snapshot.position] = snapshot.encode()

    def forget(self) -> None:
        self._pending.clear()

    def write(self, durable: Position) -> None:
        """Write the newest that was taken within the durable part of the log. Best effort.

        The position decides, not the offset alone: a snapshot must not speak of a marker that a
        power cut may still take back.
        """
        ready = [position for position in self._pending if position <= durable]
        if not ready:
            return
        newest = max(ready)
        offset, data = newest[1], self._pending[newest]
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
            uncut = found.offset <= state.cut_offset and found.position[0] <= state.cut_epoch
            if behind == 0 or (behind == 1 and uncut):
                return found
        disk.remove(path)
    return None


def _offsets(disk: Disk, directory: str) -> list[int]:
    return sorted(
        int(name.removesuffix(SUFFIX)) for name in disk.list(directory) if name.endswith(SUFFIX)
    )


def _path(directory: str, offset: int) -> str:
    return f"{directory}/{offset:020d}{SUFFIX}"
