"""`identity.json`: which node of which cluster a data directory belongs to.

It is written before anything else of the node's, and names the first voters of the cluster's
metadata. The incarnation tells a node that has its data from one that lost it: whoever joins or
founds a cluster draws a new one, so that a node with an empty directory can't vote for what it has
forgotten. A founder, too: with a secret that was kept it would be let in as the one it was.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
from crc32c import crc32c

from sapwood.disk import Journal, OsDisk, replace

FILE_NAME = "identity.json"
VERSION = 2
UNCHECKED_VERSION = 1
"""Of releases that wrote no checksum."""
OLD_INCARNATION = 0
"""Of founders before they drew one."""

Natural = Annotated[int, msgspec.Meta(ge=0)]


class IdentityUnusable(Exception):
    """The directory doesn't say, or not reliably, whose it is."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    version: int = VERSION
    cluster_id: str | None
    """None until a founder's metadata log, which knows it, has been read for the first time."""
    node_id: Natural
    incarnation: Natural
    metadata_voters: tuple[tuple[Natural, Natural], ...]
    """Node and incarnation of those who founded the metadata log."""
    members: dict[int, str] = {}
    """Where other nodes were when this one last looked: enough to find out where they are now."""


def read(directory: Path) -> Identity | None:
    """None if there never was one."""
    path = directory / FILE_NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise IdentityUnusable(f"can't read {path}: {error.strerror}") from error
    return parse(data, str(path))


def parse(data: bytes, path: str) -> Identity:
    """What is stored at `path`, if it is what was written there.

    Without a checksum one flipped bit made a node another node, or one of another cluster.
    """
    try:
        stored = msgspec.json.decode(data, type=dict[str, Any])
        version, checksum = stored["version"], stored.pop("checksum", None)
        if checksum is None and version == VERSION:
            raise KeyError("checksum")
        if checksum is not None and checksum != checksum_of(stored):
            raise ValueError(f"its checksum is not {checksum}")
        if version in (UNCHECKED_VERSION, VERSION):
            return msgspec.convert({**stored, "version": VERSION}, Identity, str_keys=True)
    except (msgspec.MsgspecError, ValueError, KeyError) as error:
        advice = "restore it from a backup, or empty the directory and let the node join anew"
        raise IdentityUnusable(f"{path} is damaged ({error}): {advice}") from error
    raise IdentityUnusable(
        f"{path} has version {version}, this release reads {VERSION}: use a newer release"
    )


def checksum_of(stored: dict[str, Any]) -> str:
    """Of all fields but this one, in their order: also of those that another release has added."""
    return f"{crc32c(msgspec.json.encode(stored)):08x}"


def write(directory: Path, identity: Identity) -> None:
    stored = msgspec.json.decode(msgspec.json.encode(identity), type=dict[str, Any])
    stored["checksum"] = checksum_of(stored)
    data = msgspec.json.format(msgspec.json.encode(stored)) + b"\n"
    replace(OsDisk(), str(directory / FILE_NAME), [data])


def founded_before(directory: Path) -> bool:
    """Whether a release without identities ran a node, and so a cluster of one, here."""
    path = directory / "journal"
    if not path.exists():
        return False
    journal = Journal.open(OsDisk(), str(path))
    try:
        if not journal.items(b"raft/"):
            return True
    finally:
        journal.close()
    raise IdentityUnusable(
        f"{directory} holds a node's data but not its {FILE_NAME}: restore that from a backup, "
        "or empty the directory and let the node join anew"
    )


def found(node_id: int, incarnation: int) -> Identity:
    """The first node of a cluster, which gets its id when the metadata log is begun."""
    return Identity(
        cluster_id=None,
        node_id=node_id,
        incarnation=incarnation,
        metadata_voters=((node_id, incarnation),),
    )


def new_incarnation(entropy: Callable[[int], bytes] = os.urandom) -> int:
    """Never that of an old founder, and never the same again."""
    return (int.from_bytes(entropy(8), "big") & (2**63 - 1)) or 1
