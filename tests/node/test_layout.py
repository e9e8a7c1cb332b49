"""A cluster's directory on this machine."""

import socket
from pathlib import Path

import pytest

from sapwood.node import identity, secret
from sapwood.node.layout import Layout, LayoutUnusable, free_port, known_nodes, node_ids


def founded(directory: Path, count: int, port: int | None = 9092) -> Layout:
    """As after a first start: every node has an identity."""
    layout = Layout(directory, count, port)
    for node_id in layout.addresses:
        layout.node_directory(node_id).mkdir(exist_ok=True)
        identity.write(layout.node_directory(node_id), identity.found(node_id, 7))
    layout.save()
    return layout


def test_at_first_one_node_founds_the_cluster_and_the_others_join_it(tmp_path: Path) -> None:
    layout = Layout(tmp_path, 3, 9092)
    assert layout.founder == 0
    assert list(layout.addresses.values()) == [f"127.0.0.1:{port}" for port in (9092, 9093, 9094)]
    assert layout.flags(0) == [
        *("--id", "0", "--dir", str(tmp_path / "node-0"), "--listen", "127.0.0.1:9092"),
        *("--secret-file", str(tmp_path / "secret"), "--bootstrap"),
    ]
    assert layout.flags(1)[-4:] == ["--join", "127.0.0.1:9092", "--join", "127.0.0.1:9094"]
    assert secret.read(tmp_path / "secret")


def test_once_the_cluster_exists_nobody_founds_one_again(tmp_path: Path) -> None:
    layout = founded(tmp_path, 3)
    assert layout.founder is None
    again = Layout(tmp_path, None, None)
    assert again.founder is None
    assert again.addresses == layout.addresses == known_nodes(tmp_path)
    for node_id in range(3):
        assert "--bootstrap" not in again.flags(node_id)
        assert again.flags(node_id).count("--join") == 2


def test_a_node_on_its_own_is_never_left_to_find_another_cluster(tmp_path: Path) -> None:
    founded(tmp_path, 1)
    assert Layout(tmp_path, 1, None).flags(0)[-2:] == ["--join", "127.0.0.1:9092"]


def test_a_cluster_grows_by_asking_for_more_nodes(tmp_path: Path) -> None:
    founded(tmp_path, 1, 19092)
    layout = Layout(tmp_path, 3, None)
    assert list(layout.addresses.values()) == [f"127.0.0.1:{19092 + i}" for i in range(3)]
    assert "--bootstrap" not in layout.flags(0)
    assert layout.add() == 3
    assert sorted(known_nodes(tmp_path)) == [0, 1, 2, 3]


def test_a_directory_of_an_earlier_release_is_founded_and_may_grow_at_once(tmp_path: Path) -> None:
    (tmp_path / "node-0").mkdir()
    assert node_ids(tmp_path) == [0]
    layout = Layout(tmp_path, 3, 9092)
    assert layout.founder == 0
    assert list(layout.addresses) == [0, 1, 2]


def test_fewer_nodes_than_there_are_is_refused_with_what_to_do(tmp_path: Path) -> None:
    founded(tmp_path, 3)
    with pytest.raises(LayoutUnusable, match=r"cluster of 3 nodes.*sapwood node drain"):
        Layout(tmp_path, 1, None)


def test_a_node_that_was_removed_is_not_started_again_nor_its_id_given_anew(tmp_path: Path) -> None:
    founded(tmp_path, 3).forget(1)
    assert node_ids(tmp_path) == [0, 2]
    layout = Layout(tmp_path, 3, None)
    assert layout.addresses == {0: "127.0.0.1:9092", 2: "127.0.0.1:9094", 3: "127.0.0.1:9095"}


def test_ports_are_kept_unless_others_are_asked_for(tmp_path: Path) -> None:
    first = founded(tmp_path, 2, 0)
    assert Layout(tmp_path, 2, 0).addresses == first.addresses
    assert Layout(tmp_path, 2, None).addresses == first.addresses
    assert list(Layout(tmp_path, 2, 7000).addresses.values()) == [
        "127.0.0.1:7000",
        "127.0.0.1:7001",
    ]


def test_a_cluster_whose_data_is_gone_altogether_is_not_founded_by_itself(tmp_path: Path) -> None:
    layout = founded(tmp_path, 2)
    for node_id in layout.addresses:
        (layout.node_directory(node_id) / "identity.json").unlink()
    with pytest.raises(LayoutUnusable, match=r"is gone: remove .*cluster\.json"):
        Layout(tmp_path, None, None)


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"version": 1}', '{"version": 1, "nodes": 1}']
)
def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path, content: str) -> None:
    (tmp_path / "cluster.json").write_text(content)
    with pytest.raises(LayoutUnusable, match=r"cluster\.json is damaged"):
        Layout(tmp_path, 1, None)


def test_a_file_of_a_later_format_asks_for_a_newer_release(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text('{"version": 2}')
    with pytest.raises(LayoutUnusable, match="newer release"):
        Layout(tmp_path, 1, None)


def test_a_free_port_can_be_bound_by_whoever_asked_for_it_and_is_nobody_elses() -> None:
    ports = [free_port() for _ in range(20)]
    assert len(set(ports)) == 20
    for port in ports:
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", port))
            server.listen()


def test_gateways_listen_beside_their_nodes_and_where_they_did_before(tmp_path: Path) -> None:
    ports = {"rest": None, "lines": 7100}
    layout = founded(tmp_path, 2)
    layout.place_gateways(ports)
    assert list(layout.gateways["rest"].values()) == ["127.0.0.1:8080", "127.0.0.1:8081"]
    assert list(layout.gateways["lines"].values()) == ["127.0.0.1:7100", "127.0.0.1:7101"]
    layout.save()
    again = Layout(tmp_path, 2, None)
    again.place_gateways(dict.fromkeys(ports))
    assert again.gateways == layout.gateways


def test_with_free_ports_for_nodes_their_gateways_take_free_ones_too(tmp_path: Path) -> None:
    layout = Layout(tmp_path, 2, 0)
    layout.place_gateways({"rest": None})
    assert not {"127.0.0.1:8080", "127.0.0.1:8081"} & set(layout.gateways["rest"].values())
