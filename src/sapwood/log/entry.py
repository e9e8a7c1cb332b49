"""The unit of a segment file: a header of our own, then one record batch or one epoch marker.

    crc32c | payload length | version | kind | reserved | append time (HLC) | payload ...
      4           4             1        1       2               8

The CRC covers the header behind it and the payload's first 61 bytes, the batch's own header: base
offset, length and leader epoch, which Kafka's CRC leaves out so that brokers can set them, all that
is decided by without looking at records, and Kafka's CRC, which covers those. So headers can be
trusted without reading the batch, and nothing is left unchecked. Preallocated room reads as zeros,
which are never a valid entry: the version is 1.

A marker says where a leader epoch begins. It is the header of a batch without records, whose last
offset lies one before its first: it takes no offset.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from sapwood.disk import Buffer, File
from sapwood.log.epochs import EpochList
from sapwood.wire import batch as wire_batch
from sapwood.wire.batch import BatchHeader, crc_ok, read_header, write_header
from sapwood.wire.errors import MalformedMessage

HEADER_SIZE = 20
VERSION = 1
BATCH = 0
MARKER = 1
# Entry header and batch header: enough to know everything about an entry but its records.
HEADERS_SIZE = HEADER_SIZE + wire_batch.HEADER_SIZE

_CRC = struct.Struct(">I")
_AFTER_CRC = struct.Struct(">IBBHq")
_HEADER = struct.Struct(">IIBBHq")
# Payload length, HLC, base offset, last offset delta, from byte 4 on: what a reader needs of
# entries that are known to be good.
PEEK = struct.Struct(">I4xqq15xi")
PEEK_START = 4

_MARKER_LENGTH = wire_batch.HEADER_SIZE - wire_batch.LENGTH_END
_OFFSET_AND_EPOCH = struct.Struct(">q4xi")

_HEADERS_CHUNK = 8 << 10
_WHOLE_CHUNK = 1 << 20


class BadEntry(Exception):
    """These bytes are not an entry that was written here."""

    def __init__(
        self, position: int, reason: str, *, unwritten: bool = False, checked: int = 0
    ) -> None:
        super().__init__(f"at byte {position}: {reason}")
        self.position = position
        self.reason = reason
        self.unwritten = unwritten
        self.checked = checked
        """How many bytes from there on a wrong checksum covers; 0 if that isn't what is wrong."""


class Entry(NamedTuple):
    position: int
    hlc: int
    header: BatchHeader

    @property
    def size(self) -> int:
        return HEADER_SIZE + self.header.size

    @property
    def end(self) -> int:
        return self.position + HEADER_SIZE + self.header.size

    @property
    def is_marker(self) -> bool:
        return self.header.last_offset_delta < 0

    def is_after(self, epoch: int, offset: int) -> bool:
        """Whether a log that ends at this position lacks it."""
        header = self.header
        return header.last_offset >= offset or (
            header.base_offset >= offset and header.leader_epoch > epoch
        )


def encode_header(batch: Buffer, hlc: int, kind: int = BATCH) -> bytes:
    rest = _AFTER_CRC.pack(len(batch), VERSION, kind, 0, hlc)
    return _CRC.pack(crc32c(rest + batch[: wire_batch.HEADER_SIZE])) + rest


def marker_header(epoch: int, offset: int) -> BatchHeader:
    return _MARKER._replace(base_offset=offset, leader_epoch=epoch)


def encode_markers(epochs: list[int], offset: int, hlc: int) -> tuple[memoryview, list[Entry]]:
    """Whole entries, one behind the other."""
    parts: list[bytes] = []
    entries: list[Entry] = []
    for epoch in epochs:
        header = marker_header(epoch, offset)
        payload = write_header(header)
        entries.append(Entry(len(entries) * HEADERS_SIZE, hlc, header))
        parts += (encode_header(payload, hlc, MARKER), payload)
    return memoryview(b"".join(parts)), entries


def _marker_template() -> BatchHeader:
    none = -1
    header = BatchHeader(
        base_offset=0,
        length=_MARKER_LENGTH,
        leader_epoch=0,
        magic=wire_batch.MAGIC,
        crc=0,
        attributes=0,
        last_offset_delta=-1,
        base_timestamp=none,
        max_timestamp=none,
        producer_id=none,
        producer_epoch=none,
        base_sequence=none,
        record_count=0,
    )
    return header._replace(crc=crc32c(write_header(header)[wire_batch.CRC_START :]))


_MARKER = _marker_template()


def parse(data: Buffer, local: int, position: int, room: int) -> Entry:
    """Check the header of the entry at `data[local:]`, which is at `position` of its file and
    has `room` bytes up to the file's end."""
    head = bytes(data[local : local + HEADERS_SIZE])
    if len(head) < HEADERS_SIZE:
        empty = not any(head)
        raise BadEntry(position, "the entry is cut short", unwritten=empty)
    crc, length, version, kind, _, hlc = _HEADER.unpack_from(head)
    if crc32c(head[4:]) != crc:
        if not any(head):
            raise BadEntry(position, "nothing was written here", unwritten=True)
        raise BadEntry(position, "the entry's checksum is wrong", checked=HEADERS_SIZE)
    if version != VERSION or kind not in (BATCH, MARKER):
        raise BadEntry(position, f"entry of unknown version {version} or kind {kind}")
    try:
        header = read_header(head, HEADER_SIZE) if kind == BATCH else _read_marker(head)
    except MalformedMessage as error:
        raise BadEntry(position, str(error)) from error
    if header.size != length:
        raise BadEntry(position, f"an entry of {length} bytes with a batch of {header.size}")
    if HEADER_SIZE + length > room:
        raise BadEntry(position, "the entry is cut short")
    return Entry(position, hlc, header)


def _read_marker(head: bytes) -> BatchHeader:
    offset, epoch = _OFFSET_AND_EPOCH.unpack_from(head, HEADER_SIZE)
    header = marker_header(epoch, offset)
    if write_header(header) != head[HEADER_SIZE:]:
        raise MalformedMessage("a marker with something else in it")
    return header


def check_batch(data: Buffer, local: int, entry: Entry) -> None:
    """Check the rest of an entry that `parse` accepted and that is in `data` as a whole."""
    if not crc_ok(data, local + HEADER_SIZE, entry.header):
        raise BadEntry(entry.position, "the batch's checksum is wrong", checked=entry.size)


def arriving(data: memoryview, end_offset: int, epochs: EpochList) -> Iterator[Entry]:
    """The entries in `data`, checked as a whole and against a log that ends there.

    Without the markers that the log has already. Raises BadEntry at the first that is wrong.
    """
    position, epoch = 0, epochs.last
    while position < len(data):
        entry = parse(data, position, position, len(data) - position)
        check_batch(data, position, entry)
        header = entry.header
        held = entry.is_marker and header.leader_epoch <= epoch
        if held and header.leader_epoch < epoch:
            held = (header.leader_epoch, header.base_offset) in epochs.starts
        if not held:
            if header.base_offset < end_offset:
                raise BadEntry(position, f"offset {header.base_offset} follows {end_offset - 1}")
            if header.leader_epoch < epoch:
                raise BadEntry(position, f"epoch {header.leader_epoch} follows {epoch}")
            end_offset, epoch = header.next_offset, header.leader_epoch
            yield entry
        position = entry.end


def walk(file: File, start: int, end: int, *, whole: bool) -> Iterator[Entry]:
    """The entries of a file between two positions, checked; with `whole` including their records.

    Raises BadEntry at the first bytes that are no entry.
    """
    chunk = _WHOLE_CHUNK if whole else _HEADERS_CHUNK
    position = origin = start
    data = b""
    while position < end:
        local = position - origin
        if local + HEADERS_SIZE > len(data):
            data = file.pread(min(chunk, end - position), position)
            origin, local = position, 0
        entry = parse(data, local, position, end - position)
        if whole:
            if local + entry.size > len(data):
                data = file.pread(min(max(chunk, entry.size), end - position), position)
                origin, local = position, 0
            check_batch(data, local, entry)
        yield entry
        position = entry.end


def is_unwritten(file: File, start: int) -> bool:
    """Whether the file holds nothing but zeros from `start` on: room allocated ahead."""
    zeros = bytes(_WHOLE_CHUNK)
    return all(
        file.pread(len(zeros), position) == zeros[: file.size - position]
        for position in range(start, file.size, len(zeros))
    )
