"""Who leads a partition, in the words that clients are told it."""

from __future__ import annotations

from sapwood.broker.state import BrokerState
from sapwood.metadata.controller import find_topic
from sapwood.metadata.image import Topic
from sapwood.server import Request
from sapwood.wire.codec import Struct
from sapwood.wire.errors import KafkaError

ELECTION_S = 1.5
"""An election takes no longer, unless too few can vote."""
SUSPECT_AFTER = 0.5
"""This part of a silence, which is several heartbeats, and a leader is probably gone."""
READ_ALONE_AFTER = 2.0
"""So many silences without a leader, and a replica lets people read what is committed."""


def reads_alone(state: BrokerState, topic: Topic, index: int) -> bool:
    """Whether nobody leads and this node's replica is as good to read from as any.

    What is committed stays readable without a quorum. Not at once: a node that was asleep first
    has to find out whether it has missed an election.

    Nor while enough are there to elect a leader, which may take longer than that on a busy machine.
    If two nodes say that they lead, a client that hears one, the other and the one again goes back
    and forth, and librdkafka may come to rest at the wrong one for good.

    Such a node may be the one that is cut off, while the others go on, and its clients may know
    nobody else: they are answered and then sent away, writers always, readers if there was nothing
    for them. Else they would ask this node for ever, and be told about nobody but itself.
    """
    partition = state.replicas.find(topic.topic_id, index)
    return (
        partition is not None
        and partition.offline_reason is None
        and not partition.has_leader
        and partition.leaderless_s() > READ_ALONE_AFTER * state.silence_s
        and partition.group.speaks_for_minority(state.loop_now())
    )


def current_leader(state: BrokerState, topic: Topic, index: int) -> tuple[int, int]:
    """(node, epoch); node -1 if nobody is known to lead.

    The epoch is -1 only if there is no telling. Clients take that for news, however old it is, and
    forget which epoch they had heard of. A replica that has just been started at least knows who
    wrote to it last; not its own term, at which nobody may have been elected: clients that had
    heard of that one would take no notice of those who are.
    """
    known = state.leadership(topic, index)
    partition = state.replicas.find(topic.topic_id, index)
    epoch = -1 if partition is None else partition.log.position[0]
    if known is not None and known.epoch < epoch:
        known = None  # it is told by one that was replaced
    elif known is not None:
        epoch = known.epoch
    if reads_alone(state, topic, index):
        return state.config.node_id, epoch
    if known is None:
        return -1, epoch
    if known.leader == state.config.node_id and (partition is None or not partition.leads):
        return -1, epoch  # it led once, and who does now has yet to be heard of
    return (known.leader, epoch) if state.is_alive(known.leader) else (-1, epoch)


def is_led_elsewhere(state: BrokerState, topic: Topic, index: int) -> bool:
    known = state.leadership(topic, index)
    return known is not None and known.leader != state.config.node_id


def is_between_leaders(state: BrokerState, topic: Topic, index: int) -> bool:
    """Whether the leader seems to be lost, so that another one is about to be elected."""
    known = state.leadership(topic, index)
    if known is None or not is_led_elsewhere(state, topic, index):
        return False
    partition = state.replicas.find(topic.topic_id, index)
    if partition is not None and not partition.has_leader:
        return partition.leaderless_s() < ELECTION_S
    if state.replicas.exchange.silent_for_s(known.leader) > SUSPECT_AFTER * state.silence_s:
        return True
    lost_for_s = state.peers.lost_for_s(known.leader)
    return lost_for_s is not None and lost_for_s < ELECTION_S


def leader_of(
    state: BrokerState, request: Request, name: str | None, topic_id: bytes, index: int
) -> tuple[Struct, Struct] | None:
    """The current leader and its endpoint, if it is another node and known."""
    try:
        topic = find_topic(state.image, name, topic_id)
    except KafkaError:
        return None
    leader, epoch = current_leader(state, topic, index)
    node = state.image.nodes.get(leader)
    if node is None or leader == state.config.node_id:
        return None
    host, port = state.address(node, request.connection.listener)
    return (
        Struct(leader_id=leader, leader_epoch=epoch),
        Struct(node_id=leader, host=host, port=port, rack=node.rack),
    )
