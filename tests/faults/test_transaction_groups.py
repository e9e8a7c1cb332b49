"""Transactions of many writers that end as one, while the node that decides on them is killed."""

import random
import threading

import sapwood
from sapwood.client.blocking import KafkaClient
from sapwood.client.calls import Node
from sapwood.coordinator.sharding import shard_of
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import KafkaError
from tests.helpers import eventually
from tests.judges.confluent import Confluent
from tests.judges.transactors import ConfluentTransactor

QUERY = "spark/sales"
TASKS = 2
BATCHES = 2
DECISIVE_MS = 30


class Driver:
    """What Spark's driver does, by requests to whoever coordinates the query now."""

    def __init__(self, cluster: sapwood.Cluster) -> None:
        self.cluster = cluster

    def coordinator(self) -> int:
        return self.cluster.leader("__transaction_state", shard_of(QUERY, 16))

    def ask(self, api: Api, message: Struct) -> Struct | None:
        """None if nobody has answered: it may have happened, or not."""
        try:
            with KafkaClient(self.cluster.bootstrap) as client:
                return client.request(api, message, Node(self.coordinator()))
        except (KafkaError, LookupError, OSError):
            return None

    def children(self, names: list[str]) -> list[Struct]:
        def described() -> list[Struct] | None:
            answer = self.ask(Api.DESCRIBE_TRANSACTIONS, Struct(transactional_ids=names))
            states = [] if answer is None else answer.transaction_states
            return states if [it.error_code for it in states] == [0] * len(names) else None

        return eventually(described, 30) or []

    def end(self, batch: int, children: list[Struct]) -> Struct | None:
        message = Struct(query=QUERY, batch_id=batch, children=children, committed=True)
        return self.ask(Api.END_TXN_GROUP, message)


def test_a_batch_of_children_is_there_whole_and_once_whenever_its_coordinator_is_killed() -> None:
    chance = random.Random(5)
    with sapwood.Cluster(nodes=3) as cluster:
        Confluent(cluster.bootstrap).create_topic("t", partitions=TASKS, replicas=3)
        driver = Driver(cluster)
        for batch in range(BATCHES):
            names = [f"{QUERY}␟{batch}/{task}/0" for task in range(TASKS)]
            tasks = [ConfluentTransactor(cluster.bootstrap, it) for it in names]
            for number, task in enumerate(tasks):
                task.begin()
                task.send("t", b"%d" % batch, partition=number)
            children = driver.children(names)
            victim = driver.coordinator()
            killing = threading.Timer(chance.uniform(0, DECISIVE_MS) / 1000, cluster.kill, [victim])
            killing.start()
            driver.end(batch, children)
            killing.join()

            def is_done(batch: int = batch, children: list[Struct] = children) -> bool:
                answer = driver.end(batch, children)
                return answer is not None and answer.error_code == 0

            eventually(is_done, 30)
            cluster.restart(victim)
            cluster.wait_healthy()
            expected = [b"%d" % it for it in range(batch + 1)]
            for partition in range(TASKS):

                def has_all(partition: int = partition, expected: list[bytes] = expected) -> bool:
                    read = ConfluentTransactor.read(cluster.bootstrap, "t", partition)
                    assert read == expected[: len(read)]
                    return read == expected

                eventually(has_all)

        def last() -> Struct | None:
            answer = driver.end(-1, [])
            return None if answer is None or answer.error_code else answer

        answer = eventually(last)
        assert answer is not None
        assert answer.last_batch_id == BATCHES - 1
