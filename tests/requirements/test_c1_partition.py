"""C1: the majority's side goes on, the minority's refuses or queues, then all agree."""

from confluent_kafka import TopicPartition

import sapwood
from sapwood.client import KafkaClient
from sapwood.wire.errors import ErrorCode
from sapwood.wire.records import encode_batch
from tests.faults.raw import Wire, produce
from tests.gateway.rest import Gateway
from tests.gateway.talk import OK, TcpTalk
from tests.helpers import eventually, port_of
from tests.judges.confluent import Confluent
from tests.judges.judge import Message
from tests.requirements.outboxes import QUEUED, join_again
from tests.requirements.test_e1_three_replicas import replicas
from tests.requirements.test_e8_quorum import REFUSED, attempt

BEFORE = [Message(b"before %03d" % number) for number in range(50)]


def test_c1_the_majority_goes_on_through_a_network_partition() -> None:
    with sapwood.Cluster(nodes=3, proxied=True) as cluster:
        judge = Confluent(cluster.bootstrap)
        judge.create_topic("e8", replicas=3)
        judge.produce("e8", BEFORE)
        cut_off = cluster.leader("e8")
        cluster.isolate(cut_off)
        majority = [index for index in cluster.nodes if index != cut_off]
        others = ",".join(map(cluster.address, majority))
        # One attempt: another might store a second copy of what the first couldn't be told of.
        assert attempt(others, b"the majority goes on", 40_000) is None
        # Asked directly: a client would be told of the others, to whom only nodes are cut off.
        with Wire(port_of(cluster.address(cut_off))) as wire:
            batch = bytes(encode_batch([(0, None, b"the minority refuses", ())]))
            assert ErrorCode(produce(wire, "e8", batch)) in REFUSED
        cluster.heal()
        cluster.wait_healthy()
        assert attempt(cluster.bootstrap, b"healed", 30_000) is None

        def ends() -> bool:
            found = replicas(cluster, "e8").values()
            return len({(it.log_end, it.high_watermark, it.term) for it in found}) == 1

        eventually(ends)
        read = [it.value for it in judge.consume("e8", len(BEFORE) + 2, timeout_s=30)]
        assert read[: len(BEFORE)] == [it.value for it in BEFORE]
        assert read[len(BEFORE) :] == [b"the majority goes on", b"healed"]


def test_c1_clients_that_know_nobody_but_a_node_that_is_cut_off_come_to_the_majority() -> None:
    with sapwood.Cluster(nodes=3, proxied=True, topics={"e8": 1}) as cluster:
        cut_off = cluster.leader("e8")
        address = cluster.address(cut_off)
        assert attempt(address, b"before", 30_000) is None
        reader = Confluent(address).consumer()
        reader.assign([TopicPartition("e8", 0, 0)])
        read: list[bytes | None] = []

        def has_read(count: int) -> bool:
            message = reader.poll(0.1)
            if message is not None and message.error() is None:
                read.append(message.value())
            return len(read) >= count

        try:
            eventually(lambda: has_read(1), 30)
            cluster.isolate(cut_off)
            eventually(lambda: attempt(address, b"after", 10_000) is None, 40)
            eventually(lambda: has_read(2), 40)
        finally:
            reader.close()
        assert read == [b"before", b"after"]


def test_c1_an_edge_that_is_cut_off_queues_and_all_subscribers_get_the_same_sequence() -> None:
    with (
        sapwood.Cluster(nodes=3, edges=1, outbox=True, proxied=True, topics={"c1": 1}) as cluster,
        Gateway(cluster.bootstrap) as above,
        Gateway(cluster.edge_address()) as below,
        TcpTalk(above.ready["lines"]) as at_core,
        TcpTalk(below.ready["lines"]) as at_edge,
        TcpTalk(below.ready["lines"]) as sender,
    ):
        for talk in (at_core, at_edge):
            assert talk.say("SUBSCRIBE", topic="c1") == OK
        assert sender.say("SEND", topic="c1", message="before") == OK
        cluster.isolate_edge()
        below_said = [f"below {number}" for number in range(10)]
        above_said = [f"above {number}" for number in range(10)]
        for one, other in zip(below_said, above_said, strict=True):
            assert sender.say("SEND", topic="c1", message=one) == QUEUED
            assert at_core.say("SEND", topic="c1", message=other) == OK
        join_again(cluster)
        assert sender.say("SEND", topic="c1", message="after") == OK
        heard = [[it.message()["message"] for _ in range(22)] for it in (at_core, at_edge)]
    assert heard[0] == heard[1] == ["before", *above_said, *below_said, "after"]


def fathers(client: KafkaClient) -> list[int]:
    """Core nodes that edges hang from."""
    return [it["id"] for it in client.tree().document["children"] if it["children"]]


def test_c1_an_edge_below_a_node_that_is_cut_off_moves_to_the_majoritys_side() -> None:
    with sapwood.Cluster(nodes=3, proxied=True, topics={"e8": 1}) as cluster:
        cluster.add_edge(cluster.address(0))
        with KafkaClient(cluster.bootstrap) as client:
            eventually(lambda: fathers(client) == [0])
        reader = Confluent(cluster.edge_address()).consumer()
        reader.assign([TopicPartition("e8", 0, 0)])
        read: list[bytes | None] = []

        def has_read(count: int) -> bool:
            message = reader.poll(0.1)
            if message is not None and message.error() is None:
                read.append(message.value())
            return len(read) >= count

        try:
            assert attempt(cluster.bootstrap, b"before", 30_000) is None
            eventually(lambda: has_read(1), 30)
            cluster.isolate(0)
            others = ",".join(map(cluster.address, [1, 2]))
            eventually(lambda: attempt(others, b"after", 10_000) is None, 40)
            eventually(lambda: has_read(2), 40)
        finally:
            reader.close()
        assert read == [b"before", b"after"]
