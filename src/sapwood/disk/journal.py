"""A node's small durable facts: one append-only file of key-value frames, compacted.

Rules:
- `put` changes memory; `flush` writes everything put since the last flush as *one* frame and
  syncs once. A frame is whole or absent after a crash.
- The next frame is written only after the sync of the one before. So a bad frame with a good one
  behind it was durable once: that is corruption, and so is one of which nothing is missing. Any
  other bad frame at the end is a write that a crash cut short: it is cut off.
- A file that has grown far beyond its live content is replaced by a new one with a single frame.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Iterator

from crc32c import crc32c

from sapwood.disk.files import replace
from sapwood.disk.seam import Disk, File, SyncFailed
from sapwood.disk.torn import may_be_torn

_FILE_HEADER = struct.Struct(">4sHHI")  # magic, version, reserved, crc32c of what precedes
_MAGIC = b"SAPJ"
_VERSION = 1
_FRAME = struct.Struct(">IIQ")  # crc32c of what follows, payload length, sequence
_RECORD = struct.Struct(">HI")  # key length, value length
_REMOVED = 0xFFFFFFFF
# Room is made ahead, in zeros: a sync that changes no file size is cheaper.
_GROWTH = 64 << 10
_COMPACT_BYTES = 1 << 20
_COMPACT_RATIO = 4

Facts = dict[bytes, bytes | None]


class JournalCorrupt(Exception):
    """The journal can't be trusted: what it says was durable is damaged."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(
            f"{path} is damaged at byte {position}: {reason}. "
            "Nothing was changed; restore the file or take the node's data out of service."
        )
        self.path = path
        self.position = position
        self.reason = reason


class Journal:
    def __init__(self, disk: Disk, file: File, facts: dict[bytes, bytes], end: int, sequence: int):
        self._disk = disk
        self._file = file
        self._facts = facts
        self._end = end
        self._sequence = sequence
        self._live_bytes = sum(_RECORD.size + len(k) + len(v) for k, v in facts.items())
        self._compact_at = _COMPACT_BYTES
        self._pending: Facts = {}
        self._waiters: list[asyncio.Future[None]] = []
        self._flushing: list[asyncio.Future[None]] | None = None
        self.failed: SyncFailed | None = None

    @classmethod
    def open(cls, disk: Disk, path: str) -> Journal:
        """Load the journal at `path`, or begin one."""
        if not disk.exists(path):
            replace(disk, path, [_file_header()])
        file = disk.open(path)
        data = file.pread(file.size, 0)
        if data[: _FILE_HEADER.size] != _file_header():
            file.close()
            raise JournalCorrupt(path, 0, "no journal header of a version this program knows")
        facts: dict[bytes, bytes] = {}
        position = _FILE_HEADER.size
        sequence = 0
        while (frame := _read_frame(data, position)) is not None:
            sequence, payload = frame
            for key, value in _records(payload):
                if value is None:
                    facts.pop(key, None)
                else:
                    facts[key] = value
            position += _FRAME.size + len(payload)
        rest = data[position:].rstrip(b"\0")
        if rest:
            if _holds_frame_after(data, position + 1, position + len(rest), sequence):
                file.close()
                raise JournalCorrupt(path, position, "a bad frame before a good one")
            if not may_be_torn(_frame_at(data, position), position):
                file.close()
                raise JournalCorrupt(path, position, "a frame that has changed")
            file.truncate(position)
        # The last frame may have been written by a process that was killed before it was synced.
        # Whoever reads it here takes it for durable, and so does the rule above.
        file.sync()
        return cls(disk, file, facts, position, sequence)

    def get(self, key: bytes) -> bytes | None:
        return self._facts.get(key)

    def items(self, prefix: bytes = b"") -> list[tuple[bytes, bytes]]:
        return sorted(item for item in self._facts.items() if item[0].startswith(prefix))

    def put(self, key: bytes, value: bytes | None) -> None:
        """Set a fact, or remove it with None. Durable after the next `flush`."""
        old = self._facts.get(key)
        if old == value:
            return
        if old is not None:
            self._live_bytes -= _RECORD.size + len(key) + len(old)
        if value is None:
            del self._facts[key]
        else:
            self._facts[key] = value
            self._live_bytes += _RECORD.size + len(key) + len(value)
        self._pending[key] = value

    def flush(self) -> asyncio.Future[None]:
        """Resolves when everything put so far is durable. OSError: not now, may be tried again;
        SyncFailed: never again."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.failed is not None:
            waiter.set_exception(self.failed)
        elif self._flushing is not None:
            # Puts after the frame under way need the next one.
            (self._waiters if self._pending else self._flushing).append(waiter)
        elif not self._pending:
            waiter.set_result(None)
        else:
            self._waiters.append(waiter)
            self._write()
        return waiter

    def close(self) -> None:
        self._file.close()

    def _write(self) -> None:
        pending, self._pending = self._pending, {}
        self._flushing, self._waiters = self._waiters, []
        if self._end > max(self._compact_at, _COMPACT_RATIO * self._live_bytes):
            self._compact(pending)
            return
        frame = _frame(self._sequence + 1, pending)
        end = self._end + len(frame)
        room = b"" if end <= self._file.size else bytes(_GROWTH)
        try:
            self._file.pwrite([frame, room] if room else [frame], self._end)
        except OSError as error:
            with contextlib.suppress(OSError):  # the next frame is to have fresh room
                self._file.truncate(self._end)
                self._file.sync()
            self._finish(pending, error)
            return

        def synced(done: asyncio.Future[None]) -> None:
            error = done.exception()
            if error is None:
                self._end = end
                self._sequence += 1
            self._finish(pending, error)

        self._disk.sync(self._file).add_done_callback(synced)

    def _compact(self, pending: Facts) -> None:
        frame = _frame(self._sequence + 1, dict(self._facts))
        path = self._file.path

        def rewrite() -> File:
            replace(self._disk, path, [_file_header(), frame, bytes(_GROWTH)])
            try:
                return self._disk.open(path)
            except OSError as error:
                # The file at hand has no name any more: what it is given is lost with the process.
                raise SyncFailed(error.errno, f"can't be opened again: {error}", path) from error

        def rewritten(done: asyncio.Future[File]) -> None:
            error = done.exception()
            if error is None:
                self._file.close()
                self._file = done.result()
                self._end = _FILE_HEADER.size + len(frame)
                self._sequence += 1
                self._compact_at = _COMPACT_BYTES
            else:
                # No room for a second file: go on appending for a while.
                self._compact_at = 2 * self._end
            self._finish(pending, error)

        self._disk.offload(rewrite).add_done_callback(rewritten)

    def _finish(self, written: Facts, error: BaseException | None) -> None:
        flushed, self._flushing = self._flushing or [], None
        if error is not None:
            self._pending = {**written, **self._pending}
            if isinstance(error, SyncFailed):
                self.failed = error
                flushed += self._waiters
                self._waiters = []
        _settle(flushed, error)
        if self._waiters:
            self._write()


def _settle(waiters: list[asyncio.Future[None]], error: BaseException | None) -> None:
    for waiter in waiters:
        if waiter.done():
            continue
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)


def _file_header() -> bytes:
    start = struct.pack(">4sHH", _MAGIC, _VERSION, 0)
    return start + struct.pack(">I", crc32c(start))


def _frame(sequence: int, facts: Facts) -> bytes:
    parts = [b""]
    for key, value in facts.items():
        if value is None:
            parts += (_RECORD.pack(len(key), _REMOVED), key)
        else:
            parts += (_RECORD.pack(len(key), len(value)), key, value)
    payload = b"".join(parts)
    checked = struct.pack(">IQ", len(payload), sequence) + payload
    return struct.pack(">I", crc32c(checked)) + checked


def _read_frame(data: bytes, position: int) -> tuple[int, bytes] | None:
    if position + _FRAME.size > len(data):
        return None
    crc, length, sequence = _FRAME.unpack_from(data, position)
    end = position + _FRAME.size + length
    # Every frame has a sequence above 0, so zeros are never a frame.
    if sequence == 0 or end > len(data) or crc32c(data[position + 4 : end]) != crc:
        return None
    return sequence, data[position + _FRAME.size : end]


def _frame_at(data: bytes, position: int) -> bytes:
    """As long as it says; with all that is missing, if it goes beyond the end."""
    _, length, _ = _FRAME.unpack(data[position : position + _FRAME.size].ljust(_FRAME.size, b"\0"))
    size = _FRAME.size + min(length, len(data))
    return data[position : position + size].ljust(size, b"\0")


def _holds_frame_after(data: bytes, start: int, stop: int, sequence: int) -> bool:
    """Whether a frame younger than `sequence` begins anywhere in [start, stop)."""
    for position in range(start, min(stop, len(data) - _FRAME.size + 1)):
        _, length, found = _FRAME.unpack_from(data, position)
        # The cheap conditions first: this looks at every byte.
        near = sequence < found <= sequence + (1 << 32) and position + length <= len(data)
        if near and _read_frame(data, position) is not None:
            return True
    return False


def _records(payload: bytes) -> Iterator[tuple[bytes, bytes | None]]:
    position = 0
    while position < len(payload):
        key_length, value_length = _RECORD.unpack_from(payload, position)
        position += _RECORD.size
        key = payload[position : position + key_length]
        position += key_length
        if value_length == _REMOVED:
            yield key, None
        else:
            yield key, payload[position : position + value_length]
            position += value_length
