"""The tree through the client: everybody looks at it, and the secret opens the rest."""

import asyncio

import pytest

import sapwood
from sapwood.client import AsyncKafkaClient, KafkaClient
from sapwood.client.admin import NewTopic
from sapwood.client.tree_admin import NewEdge
from sapwood.node import secret
from sapwood.wire.errors import KafkaError


def test_the_tree_is_changed_with_the_secret_and_seen_without_it(cluster: sapwood.Cluster) -> None:
    shared = secret.read(cluster.layout.secret_file)
    with (
        KafkaClient(cluster.bootstrap, secret=shared) as keeper,
        KafkaClient(cluster.bootstrap) as visitor,
    ):
        edge = keeper.register_edge(NewEdge("here", 7001, ports={"line": 7000}))
        assert f"{edge.host}:{edge.port}" == cluster.bootstrap
        assert "pending: edge" in visitor.tree().drawing
        keeper.confirm_edge(str(edge.father), "here:7001")
        (core,) = visitor.tree().document["children"]
        assert [(it["id"], it["ports"]) for it in core["children"]] == [
            (edge.edge_id, {"line": 7000})
        ]
        with pytest.raises(KafkaError, match="stranger"):
            keeper.report_down("stranger:1", "here:7001")
        keeper.report_down(str(edge.father), "here:7001")
        assert visitor.tree().document["children"][0]["children"] == []
        # As a node is answered in any order, everything else works as it does for others.
        keeper.create_topics([NewTopic("t", 1)])
        keeper.send("t", b"x")
        keeper.flush()
        found = keeper.consume({("t", 0): 0}, stop_at="end")
        assert [it.value for it in found] == [b"x"]


def test_a_wrong_secret_is_told_and_none_gets_nowhere(cluster: sapwood.Cluster) -> None:
    with (
        KafkaClient(cluster.bootstrap, api_timeout_ms=2_000, bootstrap_timeout_ms=2_000) as visitor,
        pytest.raises(KafkaError),
    ):
        visitor.register_edge(NewEdge("here", 7001))
    with (
        pytest.raises(KafkaError, match="secret"),
        KafkaClient(cluster.bootstrap, secret=b"0" * 32, bootstrap_timeout_ms=2_000) as guesser,
    ):
        guesser.tree()


def test_the_asyncio_client_has_the_same_calls(cluster: sapwood.Cluster) -> None:
    shared = secret.read(cluster.layout.secret_file)

    async def use() -> list[int]:
        async with AsyncKafkaClient(cluster.bootstrap, secret=shared) as client:
            edge = await client.register_edge(NewEdge("here", 7001, wish="0"))
            await client.confirm_edge("0", str(edge.edge_id))
            asked = [client.tree() for _ in range(20)]
            trees = await asyncio.gather(*asked)
            await client.report_down("0", str(edge.edge_id))
            return [len(it.document["children"][0]["children"]) for it in trees]

    assert asyncio.run(use()) == [1] * 20
