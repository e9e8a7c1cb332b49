"""A5: a broker dies, its children get another father, and no client has to do anything."""

import threading

import sapwood
from sapwood.client import KafkaClient
from tests.requirements.trees import Tree

HALF = 100


def test_a5_the_children_of_a_dead_broker_move_and_its_grandchildrens_clients_read_on(
    cluster: sapwood.Cluster,
) -> None:
    cluster.create_topics({"news": 1})
    tree = Tree(cluster)
    tree.grow(p="0", q="p", r="q")
    tree.becomes("0(p(q(r)))")
    sent = [b"%d" % number for number in range(2 * HALF)]
    got: list[bytes | None] = []
    half_way = threading.Event()

    def read() -> None:
        with KafkaClient(cluster.edge_address(tree.edges["r"])) as client:
            for record in client.consume({("news", 0): 0}, stop_at={("news", 0): 2 * HALF}):
                got.append(record.value)
                if len(got) == HALF:
                    half_way.set()

    reader = threading.Thread(target=read)
    reader.start()
    with KafkaClient(cluster.bootstrap) as publisher:
        for value in sent[:HALF]:
            publisher.send("news", value)
        publisher.flush()
        assert half_way.wait(60)
        tree.kill("p")
        for value in sent[HALF:]:
            publisher.send("news", value)
        publisher.flush()
    reader.join(60)
    assert got == sent
    tree.becomes("0(q(r))")
