"""Which edge a client is sent to."""

from collections import Counter

from sapwood.edge.siblings import Sibling, leader_for

SIBLINGS = [Sibling(10_000 + it, "edge.example", 9092 + it) for it in range(4)]
CLIENTS = [f"client-{it}" for it in range(400)]


def test_every_sibling_gives_the_same_answer() -> None:
    for client in CLIENTS:
        assert leader_for(client, SIBLINGS) == leader_for(client, reversed(SIBLINGS))


def test_clients_are_spread_over_all_of_them() -> None:
    shares = Counter(leader_for(client, SIBLINGS) for client in CLIENTS)
    assert set(shares) == set(SIBLINGS)
    assert min(shares.values()) > len(CLIENTS) / len(SIBLINGS) / 2


def test_only_the_clients_of_one_that_has_gone_are_sent_elsewhere() -> None:
    gone, *left = SIBLINGS
    for client in CLIENTS:
        before = leader_for(client, SIBLINGS)
        if before != gone:
            assert leader_for(client, left) == before
