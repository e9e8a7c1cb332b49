"""What a node notes in its journal about each of its replicas.

Two facts per replica: its vote and identity, which must be durable before anybody hears of them;
and how far its log was durable and committed, which is noted now and then to make starts quick.
And one of the node: how far its clock may have come.
"""

from __future__ import annotations

import asyncio
import struct
from typing import NamedTuple

from sapwood.disk import Disk, Journal
from sapwood.raft import HardState, Voter

_CLEAN_STOP = b"clean-stop"
_BOOT = b"boot"
_CLOCK_BOUND = b"clock"
_CLOCK = struct.Struct(">Bq")  # version, bound
_END = struct.Struct(">qq")
_OLD_END = struct.Struct(">q")
_IDENTITY = struct.Struct(">Bqiqq")  # version, term, who was voted for, own incarnation
_VERSION = 1
_NO_NODE = -1


class Identity(NamedTuple):
    state: HardState
    incarnation: int


class Extent(NamedTuple):
    durable_end: int = 0
    high_watermark: int = 0


class UnreadableNote(Exception):
    """The journal holds what this release can't read."""


def _name(topic_id: bytes, index: int) -> bytes:
    return topic_id.hex().encode() + b"/" + str(index).encode()


class Notes:
    def __init__(self, disk: Disk, path: str) -> None:
        self._journal = Journal.open(disk, path)
        self._boot = disk.boot_id().encode()
        self.was_clean = self._journal.get(_CLEAN_STOP) is not None
        self.kept_its_memory = bool(self._boot) and self._journal.get(_BOOT) == self._boot
        """The machine has run all the time: what was written but not synced is still there."""

    def begin(self) -> None:
        """From here on a crash is an unclean stop."""
        self._journal.put(_CLEAN_STOP, None)
        self._journal.put(_BOOT, self._boot)

    def stopped_cleanly(self) -> None:
        self._journal.put(_CLEAN_STOP, b"1")

    def identity(self, topic_id: bytes, index: int) -> Identity | None:
        noted = self._journal.get(b"raft/" + _name(topic_id, index))
        if noted is None:
            return None
        if noted[0] != _VERSION:
            raise UnreadableNote(f"a vote in format {noted[0]}, this release reads {_VERSION}")
        _, term, node, voted_incarnation, incarnation = _IDENTITY.unpack(noted)
        vote = None if node == _NO_NODE else Voter(node, voted_incarnation)
        return Identity(HardState(term, vote), incarnation)

    def note_identity(self, topic_id: bytes, index: int, identity: Identity) -> None:
        vote = identity.state.vote or Voter(_NO_NODE, 0)
        self._journal.put(
            b"raft/" + _name(topic_id, index),
            _IDENTITY.pack(_VERSION, identity.state.term, *vote, identity.incarnation),
        )

    def extent(self, topic_id: bytes, index: int) -> Extent:
        noted = self._journal.get(b"end/" + _name(topic_id, index))
        if noted is None:
            return Extent()
        if len(noted) == _OLD_END.size:  # of a single node: what was durable was committed
            return Extent(*_OLD_END.unpack(noted), *_OLD_END.unpack(noted))
        return Extent(*_END.unpack(noted))

    def note_extent(self, topic_id: bytes, index: int, extent: Extent) -> None:
        self._journal.put(b"end/" + _name(topic_id, index), _END.pack(*extent))

    def clock(self) -> int:
        """What the node's clock may have shown: it begins there."""
        noted = self._journal.get(_CLOCK_BOUND)
        if noted is None:
            return 0
        if noted[0] != _VERSION:
            raise UnreadableNote(f"a clock in format {noted[0]}, this release reads {_VERSION}")
        _, bound = _CLOCK.unpack(noted)
        return int(bound)

    def note_clock(self, bound: int) -> None:
        self._journal.put(_CLOCK_BOUND, _CLOCK.pack(_VERSION, bound))

    def forget_topic(self, topic_id: bytes) -> None:
        """All of it, also of replicas that were moved away from here long ago."""
        for kind in (b"end/", b"raft/"):
            for key, _ in self._journal.items(kind + topic_id.hex().encode() + b"/"):
                self._journal.put(key, None)

    def flush(self) -> asyncio.Future[None]:
        return self._journal.flush()
