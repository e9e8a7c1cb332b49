"""What a log gives to another one that begins where it starts.

A log may start within a batch: records before were deleted, the batch goes as a whole. So a seed
has that batch, too, and a ledger as of its end.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from sapwood.log import snapshot
from sapwood.log.entry import BadEntry, Entry, check_batch, parse
from sapwood.log.errors import BadSnapshot
from sapwood.log.snapshot import Snapshot

_HEADER = struct.Struct(">4sHHI")  # magic, version, reserved, crc32c of what follows
_SIZES = struct.Struct(">qI")  # start offset, size of the snapshot
_MAGIC = b"SAPB"
_VERSION = 1


class Seed(NamedTuple):
    start_offset: int
    snapshot: Snapshot
    data: bytes
    """The entry of the batch that holds the start, if it begins before it."""

    @property
    def base_offset(self) -> int:
        entry = self.entry
        return self.start_offset if entry is None else entry.header.base_offset

    @property
    def entry(self) -> Entry | None:
        return parse(self.data, 0, 0, len(self.data)) if self.data else None

    def encode(self) -> bytes:
        ledger = self.snapshot.encode()
        body = _SIZES.pack(self.start_offset, len(ledger)) + ledger + self.data
        return _HEADER.pack(_MAGIC, _VERSION, 0, crc32c(body)) + body


def decode(data: bytes) -> Seed:
    body = data[_HEADER.size :]
    if data[: _HEADER.size] != _HEADER.pack(_MAGIC, _VERSION, 0, crc32c(body)):
        raise BadSnapshot("a log's snapshot is damaged or of an unknown version")
    start_offset, size = _SIZES.unpack_from(body)
    found = snapshot.decode(body[_SIZES.size : _SIZES.size + size])
    if found is None:
        raise BadSnapshot("a log's snapshot is of an unknown version")
    seed = Seed(start_offset, found, body[_SIZES.size + size :])
    try:
        entry = seed.entry
        if entry is not None:
            check_batch(seed.data, 0, entry)
    except BadEntry as error:
        raise BadSnapshot(f"a log's snapshot has a bad batch: {error}") from error
    return seed
