"""Whose a data directory is: written once, read at every start, never guessed."""

import asyncio
import json
from pathlib import Path

import pytest

from sapwood.disk import Journal, OsDisk
from sapwood.node import identity
from sapwood.node.identity import FILE_NAME, Identity, IdentityUnusable

JOINED = Identity(
    cluster_id="c" * 22,
    node_id=3,
    incarnation=2**62 + 1,
    metadata_voters=((0, 0), (1, 17)),
    members={0: "127.0.0.1:9092", 1: "[::1]:9093"},
)


def note_in_journal(directory: Path, key: bytes) -> None:
    async def note() -> None:
        journal = Journal.open(OsDisk(), str(directory / "journal"))
        journal.put(key, b"something")
        await journal.flush()
        journal.close()

    asyncio.run(note())


def test_an_identity_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert identity.read(tmp_path) is None
    identity.write(tmp_path, JOINED)
    assert identity.read(tmp_path) == JOINED
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_the_file_says_its_version_and_is_readable_for_people(tmp_path: Path) -> None:
    identity.write(tmp_path, JOINED)
    text = (tmp_path / FILE_NAME).read_text()
    assert json.loads(text)["version"] == 2
    assert len(text.splitlines()) > 5


def test_a_newer_release_may_have_added_a_field(tmp_path: Path) -> None:
    identity.write(tmp_path, JOINED)
    stored = json.loads((tmp_path / FILE_NAME).read_text())
    del stored["checksum"]
    newer = {**stored, "colour": "green"}
    newer["checksum"] = identity.checksum_of(newer)
    (tmp_path / FILE_NAME).write_text(json.dumps(newer))
    assert identity.read(tmp_path) == JOINED


def test_an_identity_of_a_release_that_wrote_no_checksum_is_read(tmp_path: Path) -> None:
    identity.write(tmp_path, JOINED)
    stored = json.loads((tmp_path / FILE_NAME).read_text())
    del stored["checksum"]
    (tmp_path / FILE_NAME).write_text(json.dumps({**stored, "version": 1}))
    assert identity.read(tmp_path) == JOINED


def test_no_flipped_bit_makes_a_node_another_one(tmp_path: Path) -> None:
    identity.write(tmp_path, JOINED)
    path = tmp_path / FILE_NAME
    whole = path.read_bytes()
    complaints = []
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            assert identity.read(tmp_path) == JOINED, bytes(damaged)
        except IdentityUnusable as error:
            complaints.append(str(error))
    assert all("is damaged" in it for it in complaints)
    assert len(complaints) > 4 * len(whole)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 100,
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"version": 1}',
        b'{"version": 2, "cluster_id": "c", "node_id": 1, "incarnation": 0, "metadata_voters": []}',
        b'{"version": 1, "cluster_id": "c", "node_id": -1, "incarnation": 0}',
        b'{"version": 1, "cluster_id": "c", "node_id": 1, "incarnation": 0',
    ],
)
def test_a_damaged_identity_is_an_error_that_names_the_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(IdentityUnusable, match=r"identity\.json is damaged.*restore it"):
        identity.read(tmp_path)


def test_an_identity_of_a_later_format_asks_for_a_newer_release(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('{"version": 3}')
    with pytest.raises(IdentityUnusable, match=r"version 3.*newer release"):
        identity.read(tmp_path)


def test_an_identity_that_may_not_be_read_is_an_error_that_says_why(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).mkdir()
    with pytest.raises(IdentityUnusable, match="Is a directory"):
        identity.read(tmp_path)


def test_a_founder_is_the_only_voter() -> None:
    found = identity.found(4, 7)
    assert (found.node_id, found.incarnation, found.metadata_voters) == (4, 7, ((4, 7),))
    assert found.cluster_id is None


def test_a_new_incarnation_is_never_that_of_an_old_founder() -> None:
    assert identity.new_incarnation(bytes) == 1
    assert identity.new_incarnation(lambda count: b"\xff" * count) == 2**63 - 1


def test_an_empty_directory_was_never_founded(tmp_path: Path) -> None:
    assert not identity.founded_before(tmp_path)


def test_a_directory_of_a_release_without_identities_is_a_cluster_of_one(tmp_path: Path) -> None:
    note_in_journal(tmp_path, b"end/" + b"0" * 32 + b"/0")
    assert identity.founded_before(tmp_path)


def test_a_directory_that_lost_its_identity_is_not_taken_for_a_founders(tmp_path: Path) -> None:
    note_in_journal(tmp_path, b"raft/" + b"0" * 32 + b"/0")
    with pytest.raises(IdentityUnusable, match=r"not its identity\.json"):
        identity.founded_before(tmp_path)
