"""Transactions as independent clients make and read them."""

import pytest

from tests.helpers import eventually, unique
from tests.judges.confluent import Confluent
from tests.judges.transactors import TRANSACTORS, FencedError, Transactor


@pytest.fixture(params=list(TRANSACTORS))
def client(request: pytest.FixtureRequest) -> type[Transactor]:
    found: type[Transactor] = TRANSACTORS[request.param]
    return found


def go_on(producer: Transactor, topic: str) -> None:
    producer.send(topic, b"late")
    producer.commit()


def test_every_client_reads_what_was_committed_and_nothing_else(
    client: type[Transactor], bootstrap: str, topic: str, confluent: Confluent
) -> None:
    other = unique("other")
    confluent.create_topic(other, partitions=3)
    producer = client(bootstrap, unique("app"))
    for number in range(6):
        producer.begin()
        producer.send(topic, b"%d" % number)
        producer.send(other, b"%d" % number, partition=number % 3)
        if number % 3 == 1:
            producer.abort()
        else:
            producer.commit()
    producer.begin()
    producer.send(topic, b"open")
    for reader in TRANSACTORS.values():
        eventually(lambda it=reader: it.read(bootstrap, topic) == [b"0", b"2", b"3", b"5"])  # type: ignore[misc]
        eventually(lambda it=reader: it.read(bootstrap, other, 2) == [b"2", b"5"])  # type: ignore[misc]
        assert reader.read(bootstrap, other, 1) == []
    producer.commit()
    eventually(lambda: client.read(bootstrap, topic)[-1:] == [b"open"])
    producer.close()


def test_a_second_producer_with_the_same_id_fences_the_first(
    client: type[Transactor], bootstrap: str, topic: str
) -> None:
    name = unique("app")
    first = client(bootstrap, name)
    first.begin()
    first.send(topic, b"of the first")
    second = client(bootstrap, name)
    second.begin()
    second.send(topic, b"of the second")
    with pytest.raises(FencedError):
        go_on(first, topic)
    second.commit()
    eventually(lambda: client.read(bootstrap, topic) == [b"of the second"])
    first.close()
    second.close()


def test_a_producer_that_stays_away_for_too_long_loses_its_transaction(
    client: type[Transactor], bootstrap: str, topic: str, confluent: Confluent
) -> None:
    slow = client(bootstrap, unique("app"), timeout_ms=3000)
    slow.begin()
    slow.send(topic, b"slow")
    other = client(bootstrap, unique("app"))
    other.begin()
    other.send(topic, b"quick")
    other.commit()
    # Readers wait for the slow one, until its time is up.
    eventually(lambda: client.read(bootstrap, topic) == [b"quick"])
    with pytest.raises(FencedError):
        go_on(slow, topic)
    slow.close()
    other.close()
