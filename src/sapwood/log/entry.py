"""The unit of a segment file: a header of our own, then one record batch.

    crc32c | payload length | version | kind | reserved | append time (HLC) | payload ...
      4           4             1        1       2               8

The CRC covers the header behind it and the payload's first 61 bytes, the batch's own header: base
offset, length and leader epoch, which Kafka's CRC leaves out so that brokers can set them, all that
is decided by without looking at records, and Kafka's CRC, which covers those. So headers can be
trusted without reading the batch, and nothing is left unchecked. Preallocated room reads as zeros,
which are never a valid entry: the version is 1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from sapwood.disk import Buffer, File
from sapwood.wire import batch as wire_batch
from sapwood.wire.batch import BatchHeader, crc_ok, read_header
from sapwood.wire.errors import MalformedMessage

HEADER_SIZE = 20
VERSION = 1
BATCH = 0
# Entry header and batch header: enough to know everything about an entry but its records.
HEADERS_SIZE = HEADER_SIZE + wire_batch.HEADER_SIZE

_CRC = struct.Struct(">I")
_AFTER_CRC = struct.Struct(">IBBHq")
_HEADER = struct.Struct(">IIBBHq")
# Payload length, HLC, base offset, last offset delta, from byte 4 on: what a reader needs of
# entries that are known to be good.
PEEK = struct.Struct(">I4xqq15xi")
PEEK_START = 4

_HEADERS_CHUNK = 8 << 10
_WHOLE_CHUNK = 1 << 20


class BadEntry(Exception):
    """These bytes are not an entry that was written here."""

    def __init__(self, position: int, reason: str, *, unwritten: bool = False) -> None:
        super().__init__(f"at byte {position}: {reason}")
        self.position = position
        self.reason = reason
        self.unwritten = unwritten


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


def encode_header(batch: Buffer, hlc: int) -> bytes:
    rest = _AFTER_CRC.pack(len(batch), VERSION, BATCH, 0, hlc)
    return _CRC.pack(crc32c(rest + batch[: wire_batch.HEADER_SIZE])) + rest


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
        raise BadEntry(position, "the entry's checksum is wrong")
    if version != VERSION or kind != BATCH:
        raise BadEntry(position, f"entry of unknown version {version} or kind {kind}")
    try:
        header = read_header(head, HEADER_SIZE)
    except MalformedMessage as error:
        raise BadEntry(position, str(error)) from error
    if header.size != length:
        raise BadEntry(position, f"an entry of {length} bytes with a batch of {header.size}")
    if HEADER_SIZE + length > room:
        raise BadEntry(position, "the entry is cut short")
    return Entry(position, hlc, header)


def check_batch(data: Buffer, local: int, entry: Entry) -> None:
    """Check the rest of an entry that `parse` accepted and that is in `data` as a whole."""
    if not crc_ok(data, local + HEADER_SIZE, entry.header):
        raise BadEntry(entry.position, "the batch's checksum is wrong")


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
