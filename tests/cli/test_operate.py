"""The commands that look after a cluster, against nodes that say what the test wants."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode
from tests.cli import scripted
from tests.cli.command import said, sapwood
from tests.cli.scripted import ScriptedNode, known, replica

DONE = Struct(error_code=0)


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    return tmp_path / "secret"


@pytest.fixture
def nodes(secret_file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ScriptedNode]]:
    """Two nodes of a healthy cluster."""
    monkeypatch.setenv("SAPWOOD_SECRET_FILE", str(secret_file))
    with scripted.scripted_nodes(2, secret_file) as found:
        for node in found:
            node.answers[Api.NODE_STATUS] = [scripted.status([known(it) for it in found])]
            node.answers[Api.CHANGE_NODE] = [DONE]
            node.answers[Api.RECOVER_PARTITION] = [DONE]
        yield found


def at(nodes: list[ScriptedNode]) -> str:
    return ",".join(node.address for node in nodes)


def changes(node: ScriptedNode) -> list[tuple[int, int]]:
    return [(it.node_id, it.action) for api, it in node.asked if api is Api.CHANGE_NODE]


# Nodes


def test_drain_waits_until_the_node_holds_nothing(nodes: list[ScriptedNode]) -> None:
    first, second = nodes
    first.answers[Api.NODE_STATUS] = [
        scripted.status([known(first), known(second, replicas=left, draining=True)])
        for left in (3, 3, 2, 1, 0)
    ]
    out, _ = sapwood("node", "drain", "1", bootstrap=at(nodes))
    assert out == "Node 1 is drained: it holds nothing.\n"
    assert changes(first) == [(1, 1)]
    assert len(first.answers[Api.NODE_STATUS]) == 1


def test_drain_need_not_wait_and_has_a_limit(nodes: list[ScriptedNode]) -> None:
    out, _ = sapwood("node", "drain", "1", "--no-wait", bootstrap=at(nodes))
    assert "is being drained" in out
    line = said("node", "drain", "1", "--timeout", "0.1", bootstrap=at(nodes))
    assert "still holds 2 replicas" in line


def test_a_node_is_undrained_and_removed(nodes: list[ScriptedNode]) -> None:
    assert "takes its share" in sapwood("node", "undrain", "1", bootstrap=at(nodes))[0]
    assert "no longer a member" in sapwood("node", "remove", "1", bootstrap=at(nodes))[0]
    assert changes(nodes[0]) == [(1, 2), (1, 3)]


def test_what_the_cluster_refuses_is_one_line_with_its_reason(nodes: list[ScriptedNode]) -> None:
    nodes[0].answers[Api.CHANGE_NODE] = [
        Struct(error_code=int(ErrorCode.INVALID_REQUEST), error_message="node 1 holds 2 replicas")
    ]
    assert "node 1 holds 2 replicas" in said("node", "remove", "1", bootstrap=at(nodes))


def test_a_node_that_is_not_there_is_named_with_those_that_are(nodes: list[ScriptedNode]) -> None:
    line = said("node", "drain", "7", bootstrap=at(nodes))
    assert "no node 7: it has 0, 1" in line
    assert changes(nodes[0]) == []


def test_the_next_node_is_asked_if_one_does_not_answer(nodes: list[ScriptedNode]) -> None:
    bootstrap = f"127.0.0.1:1,{nodes[1].address}"
    sapwood("node", "undrain", "0", bootstrap=bootstrap)
    assert changes(nodes[1]) == [(0, 2)]
    assert "127.0.0.1:1" in said("node", "undrain", "0", bootstrap="127.0.0.1:1")


def test_a_wrong_secret_is_one_clear_line(nodes: list[ScriptedNode], tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("ab" * 32)
    flags = ["--secret-file", str(other)]
    assert "secret" in said("node", "undrain", "0", *flags, bootstrap=at(nodes))
    assert changes(nodes[0]) == []


def test_without_a_secret_a_command_says_where_to_find_it(
    nodes: list[ScriptedNode], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPWOOD_DIR", str(tmp_path / "empty"))
    monkeypatch.delenv("SAPWOOD_SECRET_FILE")
    assert "--secret-file" in said("node", "undrain", "0", bootstrap=at(nodes))


def test_the_secret_of_the_directory_of_up_is_found(
    nodes: list[ScriptedNode], secret_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPWOOD_DIR", str(secret_file.parent))
    monkeypatch.delenv("SAPWOOD_SECRET_FILE")
    sapwood("node", "undrain", "0", bootstrap=at(nodes))
    assert changes(nodes[0]) == [(0, 2)]


# Partitions


@pytest.fixture
def partitions(nodes: list[ScriptedNode]) -> list[ScriptedNode]:
    """`fine` is whole; `lame` lacks a copy; `lost` has no leader and is offline on node 1."""
    heard = Struct(node=1, incarnation=7, log_end=10, durable_end=9, heard_ms=12)
    nodes[0].answers[Api.DESCRIBE_REPLICAS] = [
        Struct(
            groups=[
                replica("fine", 0, role="leader", followers=[heard]),
                replica("lame", 0, role="leader", in_sync=[0], target=[0, 1, 2]),
                replica("lost", 0, role="candidate", term=5, leader=-1, log_end=8),
            ]
        )
    ]
    nodes[1].answers[Api.DESCRIBE_REPLICAS] = [
        Struct(
            groups=[
                replica("fine", 0),
                # It was the leader before, and doesn't know yet that it no longer is.
                replica("lame", 0, role="leader", epoch=1, term=1),
                replica("lost", 0, role="offline", term=4, offline_reason="the disk is full"),
            ]
        )
    ]
    return nodes


def listed(*arguments: str, nodes: list[ScriptedNode]) -> list[dict[str, Any]]:
    out, _ = sapwood("partition", "ls", "-o", "json", *arguments, bootstrap=at(nodes))
    found: list[dict[str, Any]] = json.loads(out)
    return found


def test_partitions_are_told_as_their_leaders_see_them(partitions: list[ScriptedNode]) -> None:
    fine, lame, lost = listed(nodes=partitions)
    assert fine == {
        "topic": "fine",
        "partition": 0,
        "leader": 0,
        "epoch": 2,
        "replicas": [0, 1],
        "voters": [0, 1],
        "in_sync": [0, 1],
        "high_watermark": 10,
        "state": "ok",
    }
    assert (lame["leader"], lame["epoch"]) == (0, 2)
    assert lame["state"] == "under-replicated, moving"
    assert lost["leader"] is None
    assert lost["state"] == "leaderless, offline on 1"


def test_partitions_that_are_well_can_be_left_out(partitions: list[ScriptedNode]) -> None:
    assert [it["topic"] for it in listed("-u", nodes=partitions)] == ["lame", "lost"]
    out, _ = sapwood("partition", "ls", bootstrap=at(partitions))
    assert "TOPIC" in out
    assert "leaderless, offline on 1" in out


def test_a_node_that_does_not_answer_is_told_of_and_left_out(
    partitions: list[ScriptedNode],
) -> None:
    gone = ScriptedNode(7)
    gone.address = "127.0.0.1:1"
    partitions[0].answers[Api.NODE_STATUS] = [
        scripted.status([known(partitions[0]), known(gone, alive=False)])
    ]
    out, err = sapwood("partition", "ls", "-o", "json", bootstrap=at(partitions))
    assert len(json.loads(out)) == 3
    assert "node 7 doesn't answer" in err


def test_one_partition_is_described_copy_by_copy(partitions: list[ScriptedNode]) -> None:
    out, _ = sapwood("partition", "describe", "fine", "0", "-o", "json", bootstrap=at(partitions))
    first, second = json.loads(out)["copies"]
    assert (first["node"], first["role"], first["durable_end"]) == (0, "leader", None)
    assert (second["node"], second["role"], second["voter"]) == (1, "follower", True)
    assert (second["durable_end"], second["heard_ms"]) == (9, 12)
    table, _ = sapwood("partition", "describe", "lost", "0", bootstrap=at(partitions))
    assert "the disk is full" in table
    assert "has a replica of" in said(
        "partition", "describe", "fine", "5", bootstrap=at(partitions)
    )


def recovered(node: ScriptedNode) -> list[tuple[str, int]]:
    return [(it.topic, it.partition) for api, it in node.asked if api is Api.RECOVER_PARTITION]


def test_an_unsafe_recovery_has_to_be_called_so(partitions: list[ScriptedNode]) -> None:
    arguments = ["partition", "recover", "lost", "0", "--node", "0", "--yes"]
    line = said(*arguments, bootstrap=at(partitions), fails=2)
    assert "--unsafe" in line
    assert recovered(partitions[0]) == []


def test_an_unsafe_recovery_asks_and_says_what_may_be_lost(partitions: list[ScriptedNode]) -> None:
    arguments = ["partition", "recover", "lost", "0", "--node", "0", "--unsafe"]
    _, err = sapwood(*arguments, bootstrap=at(partitions), stdin=b"n\n", fails=1)
    assert "Node 1 has more: its copy ends at 10" in err
    assert "ends at 8" in err
    assert "lost" in err
    assert recovered(partitions[0]) == []
    out, _ = sapwood(*arguments, bootstrap=at(partitions), stdin=b"y\n")
    assert "goes on from node 0's copy" in out
    assert recovered(partitions[0]) == [("lost", 0)]


def test_an_unsafe_recovery_goes_to_the_node_that_was_named(
    partitions: list[ScriptedNode],
) -> None:
    sapwood(
        *("partition", "recover", "lost", "0", "--node", "1", "--unsafe", "--yes"),
        bootstrap=at(partitions),
    )
    assert recovered(partitions[0]) == []
    assert recovered(partitions[1]) == [("lost", 0)]


def test_a_partition_that_has_a_leader_is_not_recovered(partitions: list[ScriptedNode]) -> None:
    arguments = ["partition", "recover", "fine", "0", "--unsafe", "--yes", "--node"]
    assert "needs no recovery" in said(*arguments, "1", bootstrap=at(partitions))
    assert "choose one of 0, 1" in said(*arguments, "5", bootstrap=at(partitions))
    assert recovered(partitions[0]) == []


# Status


def told(*arguments: str, nodes: list[ScriptedNode], fails: int = 0) -> dict[str, Any]:
    out, _ = sapwood("status", "--json", *arguments, bootstrap=at(nodes), fails=fails)
    found: dict[str, Any] = json.loads(out)
    return found


def test_status_tells_of_a_cluster_elsewhere(nodes: list[ScriptedNode]) -> None:
    found = told(nodes=nodes)
    assert found["healthy"] is True
    assert (found["cluster_id"], found["controller"], found["controller_epoch"]) == ("c" * 22, 0, 3)
    assert [(it["id"], it["state"], it["leaders"], it["replicas"]) for it in found["nodes"]] == [
        (0, "alive", 1, 2),
        (1, "alive", 1, 2),
    ]


def test_status_shows_what_is_amiss_and_says_so_with_its_exit_status(
    nodes: list[ScriptedNode],
) -> None:
    first, second = nodes
    first.answers[Api.NODE_STATUS] = [
        scripted.status(
            [known(first, draining=True), known(second, alive=False, rack="cellar")],
            healthy=False,
            under_replicated=4,
            leaderless=2,
        )
    ]
    out, _ = sapwood("status", bootstrap=at(nodes), fails=1)
    assert "Cluster cccccccccccccccccccccc: controller 0 in epoch 3" in out
    assert "4 under-replicated, 2 leaderless" in out
    rows = [line.split() for line in out.splitlines()]
    assert ["0", "core", "alive,", "draining", "1", "2", "-"] in [row[:7] for row in rows]
    assert ["1", "core", "dead", "1", "2", "cellar"] in [row[:6] for row in rows]
    assert told(nodes=nodes, fails=1)["nodes"][1]["state"] == "dead"


def test_status_can_wait_until_all_is_well(nodes: list[ScriptedNode]) -> None:
    ill = scripted.status([known(nodes[0])], healthy=False, controller=-1)
    nodes[0].answers[Api.NODE_STATUS] = [ill, ill, *nodes[0].answers[Api.NODE_STATUS]]
    assert told("--exit-when-healthy", nodes=nodes)["healthy"] is True
    nodes[0].answers[Api.NODE_STATUS] = [ill]
    found = told("--exit-when-healthy", "--timeout", "0.2", nodes=nodes, fails=1)
    assert (found["healthy"], found["controller"]) == (False, None)


def test_status_watches_until_it_is_told_to_stop_or_all_is_well(nodes: list[ScriptedNode]) -> None:
    ill = scripted.status([known(nodes[0])], healthy=False, offline=1)
    nodes[0].answers[Api.NODE_STATUS] = [ill, *nodes[0].answers[Api.NODE_STATUS]]
    out, _ = sapwood("status", "-w", "--exit-when-healthy", bootstrap=at(nodes))
    assert out.index("1 offline") < out.index("Healthy")
