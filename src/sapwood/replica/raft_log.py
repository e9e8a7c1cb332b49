"""A partition's log as consensus sees it."""

from __future__ import annotations

import struct
from collections.abc import Callable

from sapwood.log import Log
from sapwood.raft import Position, Voter, Voters

VOTERS_KEY = struct.pack(">hh", 0, 6)
"""Version and type of the control record, which Kafka's clients skip."""
_VOTER = struct.Struct(">iq")
_VERSION = b"\x01"


def encode_voters(voters: Voters) -> bytes:
    return _VERSION + b"".join(_VOTER.pack(*voter) for voter in voters)


def decode_voters(value: bytes) -> Voters:
    if value[:1] != _VERSION or (len(value) - 1) % _VOTER.size:
        raise ValueError("a record of voters that this release can't read")
    return tuple(Voter(*it) for it in _VOTER.iter_unpack(value[1:]))


class GroupLog:
    def __init__(self, log: Log, hybrid_now: Callable[[], int], now_ms: Callable[[], int]) -> None:
        self._log = log
        self._hybrid_now = hybrid_now
        self._now_ms = now_ms
        self._newest: tuple[int, bytes] | None = None
        self._voters: tuple[int, Voters] | None = None

    @property
    def position(self) -> Position:
        return Position(*self._log.position)

    @property
    def start_offset(self) -> int:
        return self._log.start_offset

    @property
    def voters(self) -> tuple[int, Voters] | None:
        found = self._log.voters
        newest = found[-1] if found else None
        if newest is not self._newest:
            self._newest = newest
            self._voters = None if newest is None else (newest[0], decode_voters(newest[1]))
        return self._voters

    def end_of_epoch(self, epoch: int) -> Position:
        return Position(*self._log.end_of_epoch(epoch))

    def append_marker(self, epoch: int) -> None:
        self._log.append_marker(epoch, self._hybrid_now(), self._now_ms())

    def append_voters(self, voters: Voters, epoch: int) -> None:
        self._log.append_control(
            VOTERS_KEY, encode_voters(voters), epoch, self._hybrid_now(), self._now_ms()
        )

    def truncate(self, position: Position) -> None:
        self._log.truncate(position.epoch, position.offset, self._now_ms())
