"""Which clusters a new node finds on this host, and which it must not find."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sapwood.node import discovery
from sapwood.node.discovery import Entry, NotPrivate
from sapwood.node.lock import DirectoryLock


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Entry]:
    """An entry of a node that runs: this process holds the lock on its data."""
    data = tmp_path / "data"
    data.mkdir()
    lock = DirectoryLock(data / "lock")
    yield Entry(
        cluster_id="one",
        node_id=0,
        address="127.0.0.1:9092",
        secret_file=str(data / "secret"),
        data_dir=str(data),
        pid=os.getpid(),
        host=discovery.this_host(),
    )
    lock.release()


def test_where_nothing_runs_nothing_is_found(runtime_directory: Path) -> None:
    assert discovery.running_clusters() == []
    assert not runtime_directory.exists()


def test_a_running_node_is_found_with_all_that_is_needed_to_join_it(running: Entry) -> None:
    discovery.register(running)
    (cluster,) = discovery.running_clusters()
    assert (cluster.cluster_id, cluster.entries) == ("one", [running])
    assert str(cluster) == "one at 127.0.0.1:9092"


def test_nodes_of_one_cluster_are_one_find_and_two_clusters_are_two(
    running: Entry, runtime_directory: Path
) -> None:
    registered = discovery.register(running)
    sibling = registered.read_text().replace('"node_id": 0', '"node_id": 1')
    (runtime_directory / "1.json").write_text(sibling)
    (runtime_directory / "2.json").write_text(sibling.replace('"one"', '"two"'))
    found = discovery.running_clusters()
    assert [(it.cluster_id, len(it.entries)) for it in found] == [("one", 2), ("two", 1)]


def test_an_entry_is_taken_back_by_removing_its_file(running: Entry) -> None:
    discovery.register(running).unlink()
    assert discovery.running_clusters() == []


@pytest.mark.parametrize(
    "change",
    [
        {"pid": 1},  # the number of a dead node, now another process's
        {"host": "elsewhere"},  # a directory that two hosts share
        {"data_dir": "/nonexistent"},  # another container's
    ],
)
def test_an_entry_that_is_not_of_a_node_running_here_is_ignored_and_swept_away(
    running: Entry, change: dict[str, object]
) -> None:
    stale = discovery.register(replace(running, **change))  # type: ignore[arg-type]
    assert discovery.running_clusters() == []
    stale = stale.rename(stale.with_name("1.json"))
    discovery.register(running)
    assert not stale.exists()


def test_an_entry_whose_node_has_ended_is_ignored(running: Entry, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    lock = DirectoryLock(other / "lock")
    discovery.register(replace(running, data_dir=str(other)))
    assert len(discovery.running_clusters()) == 1
    lock.release()
    assert discovery.running_clusters() == []


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"cluster_id": "x"}'])
def test_a_file_that_is_no_entry_is_ignored(
    running: Entry, runtime_directory: Path, content: str
) -> None:
    discovery.register(running)
    (runtime_directory / "0.json").write_text(content)
    assert len(discovery.running_clusters()) == 1


def test_a_directory_that_others_may_write_to_is_not_believed(
    running: Entry, runtime_directory: Path
) -> None:
    discovery.register(running)
    runtime_directory.chmod(0o770)
    for attempt in (discovery.running_clusters, lambda: discovery.register(running)):
        with pytest.raises(NotPrivate, match="SAPWOOD_RUNTIME_DIR"):
            attempt()


def test_a_link_in_place_of_the_directory_is_not_believed(
    running: Entry, runtime_directory: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    runtime_directory.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotPrivate):
        discovery.register(running)


def test_the_directory_is_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, running: Entry
) -> None:
    monkeypatch.delenv(discovery.VARIABLE)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "xdg"))
    assert discovery.runtime_directory() == tmp_path / "xdg" / "sapwood"
    discovery.register(running)
    assert discovery.runtime_directory().stat().st_mode & 0o777 == 0o700
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert str(os.getuid()) in discovery.runtime_directory().name
