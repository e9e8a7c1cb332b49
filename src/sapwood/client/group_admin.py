"""Looking after consumer groups of both protocols: procedures over the core."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple

from sapwood.client.calls import GROUP, AnyNode, Coordinator, Node, read_coordinator
from sapwood.client.cluster import TopicPartition
from sapwood.client.core import ClientCore
from sapwood.client.errors import MISPLACED, error_for
from sapwood.client.groups import BY_NAME, read_positions
from sapwood.client.procedures import Procedure, Wait, wait_for
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError

CLASSIC, CONSUMER = "classic", "consumer"

_NOT_SUCH = (
    ErrorCode.GROUP_ID_NOT_FOUND,  # or not of this type
    ErrorCode.UNSUPPORTED_VERSION,  # or nothing is, at this broker
)
_DEAD = "Dead"
_MOVED = MISPLACED | {ErrorCode.BROKER_NOT_AVAILABLE}

Clock = Callable[[], float]


class ListedGroup(NamedTuple):
    group_id: str
    type: str
    state: str


class GroupMember(NamedTuple):
    member_id: str
    client_id: str
    host: str
    owned: frozenset[TopicPartition]


class DescribedGroup(NamedTuple):
    group_id: str
    type: str
    state: str
    assignor: str
    members: tuple[GroupMember, ...]


def list_groups(core: ClientCore, clock: Clock) -> Procedure[list[ListedGroup]]:
    """Every node tells those that it coordinates."""
    brokers = (yield from wait_for(core.metadata([], clock()))).brokers
    question = Struct(states_filter=[], types_filter=[])
    tickets = [
        core.request(Api.LIST_GROUPS, question, Node(each), None, clock(), _read_listed)
        for each in sorted(brokers)
    ]
    found: set[ListedGroup] = set()
    for ticket in tickets:
        found |= _listed((yield from wait_for(ticket)))
    return sorted(found)


def list_groups_beside(
    core: ClientCore, clock: Clock, group_id: str
) -> Procedure[list[ListedGroup]]:
    """Those that the coordinator of this group looks after, all of them.

    A node lists what it coordinates, and says nothing of groups that have moved away or are about
    to come. So it has to prove before and after the list that this group is with it.
    """
    deadline_ms = clock() + core.config.api_timeout_ms
    attempts = 0
    while True:
        try:
            key = Struct(key=group_id, key_type=GROUP, coordinator_keys=[group_id])
            answer = yield from wait_for(
                core.request(Api.FIND_COORDINATOR, key, AnyNode(), None, clock())
            )
            node = Node(read_coordinator(answer))
            yield from _prove(core, clock, group_id, node)
            question = Struct(states_filter=[], types_filter=[])
            listed = yield from wait_for(
                core.request(Api.LIST_GROUPS, question, node, None, clock(), _read_listed)
            )
            yield from _prove(core, clock, group_id, node)
            return sorted(_listed(listed))
        except KafkaError as error:
            if error.code not in _MOVED or clock() >= deadline_ms:
                raise
        yield Wait((), clock() + core.config.pause_ms(attempts))
        attempts += 1


def _prove(core: ClientCore, clock: Clock, group_id: str, node: Node) -> Procedure[None]:
    asked = Struct(group_id=group_id, member_id=None, member_epoch=-1, topics=[])
    message = Struct(group_id=group_id, topics=[], groups=[asked], require_stable=False)
    answer = yield from wait_for(core.request(Api.OFFSET_FETCH, message, node, BY_NAME, clock()))
    read_positions(group_id, answer)


def _listed(answer: Struct) -> set[ListedGroup]:
    return {
        ListedGroup(
            each.group_id,
            (getattr(each, "group_type", "") or CLASSIC).lower(),
            getattr(each, "group_state", ""),
        )
        for each in answer.groups
    }


def describe_group(
    core: ClientCore, clock: Clock, group_id: str
) -> Procedure[DescribedGroup | None]:
    """None if there is no such group."""
    home = Coordinator(GROUP, group_id)
    try:
        question = Struct(group_ids=[group_id], include_authorized_operations=False)
        answer = yield from wait_for(
            core.request(
                Api.CONSUMER_GROUP_DESCRIBE, question, home, None, clock(), _read_described
            )
        )
        return _consumer_group(answer.groups[0])
    except KafkaError as error:
        if error.code not in _NOT_SUCH:
            raise
    try:
        question = Struct(groups=[group_id], include_authorized_operations=False)
        answer = yield from wait_for(
            core.request(Api.DESCRIBE_GROUPS, question, home, None, clock(), _read_described)
        )
    except KafkaError as error:
        if error.code not in _NOT_SUCH:
            raise
        return None
    (group,) = answer.groups
    return None if group.group_state == _DEAD else _classic_group(group)


def _consumer_group(group: Struct) -> DescribedGroup:
    members = tuple(
        GroupMember(
            each.member_id,
            each.client_id,
            each.client_host,
            frozenset(
                (topic.topic_name, partition)
                for topic in each.assignment.topic_partitions
                for partition in topic.partitions
            ),
        )
        for each in group.members
    )
    return DescribedGroup(group.group_id, CONSUMER, group.group_state, group.assignor_name, members)


def _classic_group(group: Struct) -> DescribedGroup:
    members = tuple(
        GroupMember(
            each.member_id,
            each.client_id,
            each.client_host,
            frozenset(read_assignment(each.member_assignment))
            if group.protocol_type == "consumer"
            else frozenset(),
        )
        for each in group.members
    )
    return DescribedGroup(group.group_id, CLASSIC, group.group_state, group.protocol_data, members)


def read_assignment(stored: bytes) -> Iterable[TopicPartition]:
    """What a classic consumer was given, in the form in which consumers tell each other.

    A version, then topics with their partitions. It is the clients' own matter: what we can't
    read is no error of anybody's.
    """
    try:
        count, position = struct.unpack_from(">i", stored, 2)[0], 6
        found = []
        for _ in range(count):
            (length,) = struct.unpack_from(">h", stored, position)
            topic = stored[position + 2 : position + 2 + length].decode()
            position += 2 + length
            (partitions,) = struct.unpack_from(">i", stored, position)
            found += [
                (topic, number)
                for number in struct.unpack_from(f">{partitions}i", stored, position + 4)
            ]
            position += 4 + 4 * partitions
    except (struct.error, UnicodeDecodeError):
        return ()
    return found


def _read_listed(answer: Struct) -> Struct:
    if answer.error_code:
        raise error_for(answer.error_code, "groups")
    return answer


def _read_described(answer: Struct) -> Struct:
    for group in answer.groups:
        if group.error_code:
            said = getattr(group, "error_message", None)
            raise error_for(group.error_code, f"group {group.group_id}", said)
    return answer
