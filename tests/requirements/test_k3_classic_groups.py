"""K3: groups of the classic protocol go on whatever dies: members, coordinators, leaders."""

import pytest

import sapwood
from sapwood.coordinator.sharding import shard_of
from tests.helpers import eventually
from tests.judges.audit import OFFSETS_TOPIC, Audit, read_all
from tests.judges.confluent import Confluent
from tests.judges.judge import Message
from tests.judges.member import KINDS
from tests.judges.membership import members

PARTITIONS = 6


@pytest.mark.parametrize("kind", KINDS)
def test_k3_a_group_goes_on_when_its_coordinators_node_and_a_member_are_killed(kind: str) -> None:
    with sapwood.Cluster(nodes=3) as cluster:
        judge = Confluent(cluster.bootstrap)
        judge.create_topic("k3", partitions=PARTITIONS, replicas=3)
        sent = 0

        def send(count: int) -> set[tuple[int, int]]:
            nonlocal sent
            for partition in range(PARTITIONS):
                judge.produce(
                    "k3", [Message(b"%d" % it) for it in range(count)], partition=partition
                )
            sent += count
            return {(it, number) for it in range(PARTITIONS) for number in range(sent)}

        def committed() -> dict[int, int]:
            commits = Audit(read_all(cluster.bootstrap), "k3").commits
            return {partition: offsets[-1] for partition, offsets in commits.items()}

        places = send(40)
        with members(kind, cluster.bootstrap, "k3", "k3") as group:
            group.start(3)
            eventually(lambda: group.share(PARTITIONS), 60)
            eventually(lambda: set(group.processed) == places, 30)

            coordinator = cluster.leader(OFFSETS_TOPIC, shard_of("k3", 16))
            cluster.kill(coordinator)
            places = send(40)
            eventually(lambda: set(group.processed) == places, 60)
            cluster.restart(coordinator)

            group.kill(group.alive[0])
            places = send(40)
            eventually(lambda: set(group.processed) == places, 60)
            eventually(lambda: group.share(PARTITIONS), 60)
            # What the killed member had processed and not committed, another one commits.
            eventually(lambda: committed() == dict.fromkeys(range(PARTITIONS), sent), 60)

        audit = Audit(read_all(cluster.bootstrap), "k3")
        assert audit.steps_back == []
        assert audit.generations_only_grow
        assert audit.has_one_owner_each
