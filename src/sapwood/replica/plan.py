"""What the metadata says about a replica of this node, and the directory it has here."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from sapwood.log import LogConfig
from sapwood.raft import Voters
from sapwood.replica.acceptance import Rules
from sapwood.replica.partition import GroupKey


@dataclass(slots=True, frozen=True)
class Settings:
    """What a topic's configs mean for its partitions on this node."""

    log: LogConfig
    rules: Rules


@dataclass(slots=True, frozen=True)
class Plan:
    """What the metadata says about a partition."""

    topic: str
    topic_id: bytes
    index: int
    settings: Settings
    first_voters: Voters
    target: tuple[int, ...]

    @property
    def key(self) -> GroupKey:
        return self.topic_id, self.index


def directory_name(topic: str, topic_id: bytes, index: int) -> str:
    """The id decides, the name is for people. Cut, since a file name has 255 bytes at most."""
    return f"{topic[:180]}-{index}.{topic_id.hex()}"


def key_of(directory: str) -> GroupKey | None:
    """The replica that a directory is for."""
    name, _, topic_id = directory.rpartition(".")
    with contextlib.suppress(ValueError):
        if len(topic_id) == 32:
            return bytes.fromhex(topic_id), int(name.rpartition("-")[2])
    return None
