"""Positions of consumer groups, asked for and committed at the group's coordinator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sapwood.client.calls import GROUP, Call, Coordinator, Router
from sapwood.client.cluster import TopicPartition
from sapwood.client.config import ClientConfig
from sapwood.client.effects import Ticket
from sapwood.client.errors import MISPLACED, error_for
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode

# From the next version on a topic goes by its id alone.
BY_NAME = 9

_UNSTABLE = MISPLACED | {ErrorCode.UNSTABLE_OFFSET_COMMIT}
# A commit whose connection broke may still be on its way: whoever sends it again has to see to it
# that the first one can't arrive behind later ones.
_ANSWERED = MISPLACED - {ErrorCode.NETWORK_EXCEPTION}


class Membership(NamedTuple):
    """As whom to commit; members of earlier epochs are fenced off."""

    member_id: str
    epoch: int


NO_MEMBER = Membership("", -1)


class Committed(NamedTuple):
    offset: int  # −1: none
    metadata: str


class Groups:
    def __init__(self, config: ClientConfig, router: Router) -> None:
        self._config = config
        self._router = router

    def positions(
        self, group: str, wanted: Iterable[TopicPartition] | None, now_ms: float
    ) -> Ticket[dict[TopicPartition, Committed]]:
        """What is committed, by default anywhere; waits for transactions about to say."""
        by_topic: dict[str, list[int]] = {}
        for topic, partition in wanted or ():
            by_topic.setdefault(topic, []).append(partition)
        named = [Struct(name=name, partition_indexes=each) for name, each in by_topic.items()]
        topics = None if wanted is None else named
        asked = Struct(group_id=group, member_id=None, member_epoch=-1, topics=topics)
        message = Struct(group_id=group, topics=topics, groups=[asked], require_stable=True)
        ticket: Ticket[dict[TopicPartition, Committed]] = Ticket()
        self._router.submit(
            Call(
                Api.OFFSET_FETCH,
                message,
                Coordinator(GROUP, group),
                lambda answer: read_positions(group, answer),
                ticket,
                now_ms,
                now_ms + self._config.api_timeout_ms,
                max_version=BY_NAME,
                retried=_UNSTABLE,
            )
        )
        return ticket

    def commit(
        self,
        group: str,
        membership: Membership,
        positions: Mapping[TopicPartition, Committed],
        now_ms: float,
    ) -> Ticket[None]:
        """All of them in one step. If the connection breaks it is unknown whether that happened."""
        message = Struct(
            group_id=group,
            generation_id_or_member_epoch=membership.epoch,
            member_id=membership.member_id,
            group_instance_id=None,
            retention_time=-1,
            topics=committed_topics(positions),
        )
        ticket: Ticket[None] = Ticket()
        self._router.submit(
            Call(
                Api.OFFSET_COMMIT,
                message,
                Coordinator(GROUP, group),
                lambda answer: read_committed_topics(group, answer),
                ticket,
                now_ms,
                now_ms + self._config.api_timeout_ms,
                max_version=BY_NAME,
                retried=_ANSWERED,
            )
        )
        return ticket

    def delete(self, group: str, now_ms: float) -> Ticket[None]:
        """The group and its positions; one that isn't there is fine."""
        ticket: Ticket[None] = Ticket()
        self._router.submit(
            Call(
                Api.DELETE_GROUPS,
                Struct(groups_names=[group]),
                Coordinator(GROUP, group),
                lambda answer: _read_deleted(group, answer),
                ticket,
                now_ms,
                now_ms + self._config.api_timeout_ms,
            )
        )
        return ticket


def committed_topics(positions: Mapping[TopicPartition, Committed]) -> list[Struct]:
    by_topic: dict[str, list[Struct]] = {}
    for (topic, partition), (offset, metadata) in positions.items():
        by_topic.setdefault(topic, []).append(
            Struct(
                partition_index=partition,
                committed_offset=offset,
                committed_leader_epoch=-1,
                committed_metadata=metadata,
            )
        )
    return [Struct(name=name, partitions=each) for name, each in by_topic.items()]


def read_committed_topics(group: str, answer: Struct) -> None:
    for topic in answer.topics:
        for partition in topic.partitions:
            if partition.error_code:
                subject = f"group {group}, topic {topic.name}, partition "
                raise error_for(partition.error_code, f"{subject}{partition.partition_index}")


def read_positions(group: str, answer: Struct) -> dict[TopicPartition, Committed]:
    found = answer.groups[0] if hasattr(answer, "groups") else answer
    if getattr(found, "error_code", 0):
        raise error_for(found.error_code, f"group {group}")
    positions = {}
    for topic in found.topics:
        for partition in topic.partitions:
            if partition.error_code:
                raise error_for(partition.error_code, f"group {group}, topic {topic.name}")
            key = topic.name, partition.partition_index
            positions[key] = Committed(partition.committed_offset, partition.metadata or "")
    return positions


def _read_deleted(group: str, answer: Struct) -> None:
    for result in answer.results:
        if result.error_code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
            raise error_for(result.error_code, f"group {group}")
