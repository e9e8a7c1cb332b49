"""Who a node is, before anything of it runs."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sapwood.node import discovery, identity, secret
from sapwood.node.config import NodeConfig
from sapwood.node.discovery import Entry
from sapwood.node.identity import Identity
from sapwood.node.lock import DirectoryLock
from sapwood.node.membership import Member, Newcomer, NoMembership, settle
from tests.node.test_identity import note_in_journal


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    return path


def settled(data: Path, **settings: Any) -> Member | Newcomer:
    return settle(NodeConfig(data_dir=str(data), **settings), data)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Entry]:
    """A node that runs on this host, as far as others can see."""
    directory = tmp_path / "running"
    directory.mkdir()
    secret.ensure(directory / "secret")
    lock = DirectoryLock(directory / "lock")
    entry = Entry(
        cluster_id="one",
        node_id=0,
        address="127.0.0.1:9092",
        secret_file=str(directory / "secret"),
        data_dir=str(directory),
        pid=os.getpid(),
        host=discovery.this_host(),
    )
    discovery.register(entry)
    yield entry
    lock.release()


def test_a_founder_gets_an_identity_and_a_secret_and_keeps_them(data: Path) -> None:
    founder = settled(data, bootstrap=True)
    assert isinstance(founder, Member)
    assert founder.identity == identity.read(data)
    assert founder.identity == identity.found(0, founder.identity.incarnation)
    assert founder.secret == secret.read(data / "secret")
    assert founder.secret_file == data / "secret"
    assert settled(data) == founder
    assert settled(data, bootstrap=True) == founder
    assert settled(data, join=["elsewhere:9092"]) == founder


def test_a_founder_has_the_id_it_asks_for_and_the_secret_file_it_is_given(data: Path) -> None:
    file = data / "elsewhere"
    founder = settled(data, bootstrap=True, node_id=7, secret_file=str(file))
    assert isinstance(founder, Member)
    assert founder.identity.node_id == 7
    assert founder.secret == secret.read(file)
    assert not (data / "secret").exists()


def test_a_directory_is_not_another_nodes(data: Path) -> None:
    settled(data, bootstrap=True, node_id=7)
    with pytest.raises(NoMembership, match="belongs to node 7, not to node 8"):
        settled(data, node_id=8)


def test_a_known_node_whose_secret_is_gone_says_what_to_do(data: Path) -> None:
    settled(data, bootstrap=True)
    (data / "secret").unlink()
    with pytest.raises(NoMembership, match="there is no secret"):
        settled(data)


def test_neither_secret_nor_founding_shows_in_what_is_printed(data: Path) -> None:
    founder = settled(data, bootstrap=True)
    assert repr(founder.secret) not in repr(founder)
    assert founder.secret.hex() not in repr(founder)


def test_a_founder_that_has_lost_everything_but_the_secret_is_another_voter(data: Path) -> None:
    """With it, it can still talk to the nodes of the cluster that it founded first."""
    first = settled(data, bootstrap=True)
    (data / identity.FILE_NAME).unlink()
    second = settled(data, bootstrap=True)
    assert isinstance(first, Member)
    assert isinstance(second, Member)
    assert second.secret == first.secret
    assert first.identity.metadata_voters == ((0, first.identity.incarnation),)
    assert second.identity.metadata_voters == ((0, second.identity.incarnation),)
    assert 0 < first.identity.incarnation != second.identity.incarnation > 0


def test_a_node_of_a_release_without_identities_goes_on_as_a_cluster_of_one(data: Path) -> None:
    note_in_journal(data, b"end/" + b"0" * 32 + b"/0")
    founder = settled(data)
    assert isinstance(founder, Member)
    assert founder.identity == Identity(
        cluster_id=None, node_id=0, incarnation=0, metadata_voters=((0, 0),)
    )
    assert settled(data) == founder


def test_a_node_with_data_of_its_own_does_not_throw_it_away_to_join_others(data: Path) -> None:
    note_in_journal(data, b"end/" + b"0" * 32 + b"/0")
    with pytest.raises(NoMembership, match="give an empty directory"):
        settled(data, join=["127.0.0.1:9092"])


def test_a_damaged_identity_or_journal_is_one_error(data: Path) -> None:
    (data / "journal").write_bytes(b"this is no journal" * 100)
    with pytest.raises(NoMembership, match="journal is damaged"):
        settled(data, bootstrap=True)
    (data / "identity.json").write_text("{")
    with pytest.raises(NoMembership, match=r"identity\.json is damaged"):
        settled(data, bootstrap=True)


def test_a_newcomer_needs_the_secret_of_the_cluster_that_it_joins(data: Path) -> None:
    with pytest.raises(NoMembership, match="--secret-file"):
        settled(data, join=["elsewhere:9092"])
    shared = secret.ensure(data / "secret")
    newcomer = settled(data, join=["elsewhere:9092", "b:1"])
    assert isinstance(newcomer, Newcomer)
    assert (newcomer.addresses, newcomer.secret) == (["elsewhere:9092", "b:1"], shared)
    assert identity.read(data) is None


@pytest.mark.parametrize("name", ["127.0.0.1:9092", "localhost:9092"])
def test_a_newcomer_that_joins_a_node_of_the_same_user_here_takes_the_secret_over(
    data: Path, running: Entry, name: str
) -> None:
    newcomer = settled(data, join=[name])
    assert newcomer.secret == secret.read(Path(running.secret_file))
    assert secret.read(data / "secret") == newcomer.secret


def test_without_a_word_a_newcomer_finds_the_one_cluster_that_runs_here(
    data: Path, running: Entry
) -> None:
    newcomer = settled(data)
    assert isinstance(newcomer, Newcomer)
    assert newcomer.addresses == [running.address]
    assert newcomer.secret == secret.read(Path(running.secret_file))
    assert newcomer.secret_file == data / "secret"


def test_where_no_cluster_runs_a_node_says_how_to_found_or_join_one(data: Path) -> None:
    with pytest.raises(NoMembership, match=r"--bootstrap.*--join HOST:PORT"):
        settled(data)
    assert list(data.iterdir()) == []


def test_where_several_clusters_run_a_node_lists_them_and_joins_none(
    data: Path, running: Entry, runtime_directory: Path
) -> None:
    (entry,) = runtime_directory.glob("*.json")
    other = entry.read_text().replace('"one"', '"two"').replace("9092", "19092")
    (runtime_directory / "1.json").write_text(other)
    with pytest.raises(NoMembership, match=r"--join.*one at .*:9092; two at .*:19092"):
        settled(data)
    assert list(data.iterdir()) == []
