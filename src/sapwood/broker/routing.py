"""Who answers a request that came in through an edge: which nodes, what each is asked, and how
their answers become one.

To its clients an edge is the whole cluster, so they send it in one request what Kafka's clients
would send to several leaders or coordinators.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from sapwood.broker.leading import current_leader
from sapwood.broker.state import BrokerState
from sapwood.metadata.controller import (
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    check_partition,
    find_topic,
)
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import KafkaError

Parts = dict[int, Struct]
"""By node, what it is asked. One part is the whole request."""


class Route(Protocol):
    def parts(self, state: BrokerState, message: Struct) -> Parts: ...

    def merge(self, answers: list[Struct]) -> Struct: ...


@dataclass(frozen=True, slots=True)
class ByLeader:
    """Partitions, each answered by its leader."""

    topics: str
    partitions: str
    index: str | None
    """Where a partition's number is; None if the number is all that there is of it."""
    answered_topics: str = "topics"
    answered_partitions: str = "partitions"
    nearest: bool = False
    """By this node, if it holds a replica."""

    def parts(self, state: BrokerState, message: Struct) -> Parts:
        wanted: dict[int, list[Struct]] = {}
        for topic in getattr(message, self.topics):
            by_leader: dict[int, list[Any]] = {}
            for it in getattr(topic, self.partitions):
                number = it if self.index is None else getattr(it, self.index)
                by_leader.setdefault(_leader(state, topic, number, self.nearest), []).append(it)
            for leader, partitions in by_leader.items():
                part = _copy(topic, **{self.partitions: partitions})
                wanted.setdefault(leader, []).append(part)
        return {node: _copy(message, **{self.topics: topics}) for node, topics in wanted.items()}

    def merge(self, answers: list[Struct]) -> Struct:
        merged: dict[object, Struct] = {}
        for answer in answers:
            for topic in getattr(answer, self.answered_topics):
                known = merged.setdefault(_name(topic), topic)
                if known is not topic:
                    getattr(known, self.answered_partitions).extend(
                        getattr(topic, self.answered_partitions)
                    )
        return _copy(answers[0], **{self.answered_topics: list(merged.values())})


@dataclass(frozen=True, slots=True)
class ByCoordinator:
    """One key, or a list of them, each answered by its coordinator."""

    kind: str
    key: str
    """Of the message, if it has it, or of what is listed."""
    listed: str | None = None
    answered: str = ""

    def parts(self, state: BrokerState, message: Struct) -> Parts:
        listed = None if self.listed is None else getattr(message, self.listed, None)
        if listed is None or self.listed is None:
            return {self._coordinator(state, getattr(message, self.key, None)): message}
        wanted: dict[int, list[Any]] = {}
        for it in listed:
            key = getattr(it, self.key) if isinstance(it, Struct) else it
            wanted.setdefault(self._coordinator(state, key), []).append(it)
        return {node: _copy(message, **{self.listed: part}) for node, part in wanted.items()}

    def merge(self, answers: list[Struct]) -> Struct:
        return _joined(answers, self.answered)

    def _coordinator(self, state: BrokerState, key: str | None) -> int:
        if key is None:
            return state.config.node_id  # a producer without transactions asks anybody
        try:
            topic, index = state.coordinators.place(self.kind, key)
        except KafkaError:
            return state.config.node_id
        leader, _ = current_leader(state, topic, index)
        return leader if leader >= 0 else state.config.node_id


@dataclass(frozen=True, slots=True)
class Everywhere:
    """What each node knows a part of."""

    answered: str

    def parts(self, state: BrokerState, message: Struct) -> Parts:
        return {node: message for node in state.image.nodes if state.is_alive(node)}

    def merge(self, answers: list[Struct]) -> Struct:
        merged = _joined(answers, self.answered)
        merged.error_code = max(getattr(it, "error_code", 0) for it in answers)
        return merged


def _leader(state: BrokerState, topic: Struct, index: int, nearest: bool) -> int:
    """This node if there is none: it knows how to say so."""
    me = state.config.node_id
    name = getattr(topic, "name", None) or getattr(topic, "topic", None)
    try:
        found = find_topic(state.image, name, getattr(topic, "topic_id", b""))
        check_partition(found, index)
    except KafkaError:
        return me
    if nearest and state.replicas.find(found.topic_id, index) is not None:
        return me
    leader, _ = current_leader(state, found, index)
    return leader if leader >= 0 else me


def _name(topic: Struct) -> object:
    return (
        getattr(topic, "name", None) or getattr(topic, "topic", None),
        getattr(topic, "topic_id", None),
    )


def _joined(answers: list[Struct], field: str) -> Struct:
    together = [it for answer in answers for it in getattr(answer, field)]
    return _copy(answers[0], **{field: together})


def _copy(message: Struct, **changed: object) -> Struct:
    return Struct(**{**vars(message), **changed})


_BY_GROUP = ByCoordinator(OFFSETS_TOPIC, "group_id")
_BY_TRANSACTION = ByCoordinator(TRANSACTIONS_TOPIC, "transactional_id")

FOR_CACHES = ByLeader("topics", "partitions", "partition", "responses", nearest=True)
"""What an edge fetches for many: what is committed may be had from any replica."""

ROUTES: dict[int, Route] = {
    Api.PRODUCE: ByLeader(
        "topic_data", "partition_data", "index", "responses", "partition_responses"
    ),
    Api.FETCH: ByLeader("topics", "partitions", "partition", "responses"),
    Api.APPEND_TIMES: ByLeader("topics", "partitions", "partition"),
    Api.LIST_OFFSETS: ByLeader("topics", "partitions", "partition_index"),
    Api.OFFSET_FOR_LEADER_EPOCH: ByLeader("topics", "partitions", "partition"),
    Api.DELETE_RECORDS: ByLeader("topics", "partitions", "partition_index"),
    Api.DESCRIBE_PRODUCERS: ByLeader("topics", "partition_indexes", None),
    Api.OFFSET_COMMIT: _BY_GROUP,
    Api.JOIN_GROUP: _BY_GROUP,
    Api.HEARTBEAT: _BY_GROUP,
    Api.LEAVE_GROUP: _BY_GROUP,
    Api.SYNC_GROUP: _BY_GROUP,
    Api.CONSUMER_GROUP_HEARTBEAT: _BY_GROUP,
    Api.OFFSET_DELETE: _BY_GROUP,
    Api.TXN_OFFSET_COMMIT: _BY_GROUP,
    Api.OFFSET_FETCH: ByCoordinator(OFFSETS_TOPIC, "group_id", "groups", "groups"),
    Api.DESCRIBE_GROUPS: ByCoordinator(OFFSETS_TOPIC, "", "groups", "groups"),
    Api.DELETE_GROUPS: ByCoordinator(OFFSETS_TOPIC, "", "groups_names", "results"),
    Api.CONSUMER_GROUP_DESCRIBE: ByCoordinator(OFFSETS_TOPIC, "", "group_ids", "groups"),
    Api.INIT_PRODUCER_ID: _BY_TRANSACTION,
    Api.ADD_PARTITIONS_TO_TXN: ByCoordinator(TRANSACTIONS_TOPIC, "v3_and_below_transactional_id"),
    Api.ADD_OFFSETS_TO_TXN: _BY_TRANSACTION,
    Api.END_TXN: _BY_TRANSACTION,
    Api.END_TXN_GROUP: ByCoordinator(TRANSACTIONS_TOPIC, "query"),
    Api.DESCRIBE_TRANSACTIONS: ByCoordinator(
        TRANSACTIONS_TOPIC, "", "transactional_ids", "transaction_states"
    ),
    Api.LIST_GROUPS: Everywhere("groups"),
    Api.LIST_TRANSACTIONS: Everywhere("transaction_states"),
    Api.DESCRIBE_LOG_DIRS: Everywhere("results"),
}
