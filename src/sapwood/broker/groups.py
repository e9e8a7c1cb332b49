"""The classic group protocol, and the administration of groups: requests to coordinators."""

import asyncio
from collections.abc import Callable, Sequence

from sapwood.broker.coordinating import ImageTopics, Kind, Shard
from sapwood.broker.refusal import refuse
from sapwood.broker.state import BrokerState
from sapwood.coordinator.classic_member import Join
from sapwood.coordinator.classic_words import refused_join, refused_sync
from sapwood.coordinator.effects import Effect
from sapwood.coordinator.group import MINUTE_MS, GroupSettings
from sapwood.coordinator.groups import Groups
from sapwood.metadata.controller import OFFSETS_TOPIC
from sapwood.server import Request
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError

MAX_ID_BYTES = 1024
"""Of a group's id, and of the names that its members give themselves: they are stored."""
MAX_CLIENT_ID_CHARACTERS = 200
GROUP_OPERATIONS = sum(1 << operation for operation in (3, 6, 8, 10, 11))
_FIRST_WITH_MEMBER_ID = 4
_FIRST_WITH_NULL_PROTOCOL = 7
_FIRST_WITH_SKIPPING = 9
_FIRST_WITH_SEVERAL_LEAVING = 3
_FIRST_WITH_NOT_FOUND = 6

Question = Callable[[Groups, object, int], Sequence[Effect]]


def kind(state: BrokerState) -> Kind[Groups]:
    def config(name: str) -> int:
        return int(state.broker_config(name))

    settings = GroupSettings(
        min_session_timeout_ms=config("group.min.session.timeout.ms"),
        max_session_timeout_ms=config("group.max.session.timeout.ms"),
        initial_rebalance_delay_ms=config("group.initial.rebalance.delay.ms"),
        max_size=config("group.max.size"),
        offsets_retention_ms=config("offsets.retention.minutes") * MINUTE_MS,
        offsets_retention_check_ms=config("offsets.retention.check.interval.ms"),
        consumer_session_timeout_ms=config("group.consumer.session.timeout.ms"),
        consumer_heartbeat_interval_ms=config("group.consumer.heartbeat.interval.ms"),
        consumer_max_size=config("group.consumer.max.size"),
    )
    topics = ImageTopics(lambda: state.image)
    return Kind(OFFSETS_TOPIC, lambda index: Groups(settings, topics))


def shard_of_group(state: BrokerState, group_id: str) -> Shard[Groups]:
    if len(group_id.encode()) > MAX_ID_BYTES:
        raise KafkaError(
            ErrorCode.INVALID_GROUP_ID, f"A group's id has at most {MAX_ID_BYTES} bytes"
        )
    return state.coordinators.shard(OFFSETS_TOPIC, group_id)


async def ask_group(state: BrokerState, group_id: str, question: Question) -> Struct:
    """The coordinator's answer about a group, if it is on this node."""
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "A group needs an id")
    return await shard_of_group(state, group_id).ask(question)


def new_id(state: BrokerState, prefix: str) -> str:
    """As Kafka makes them: a name for people, and a part that nobody else has."""
    digits = state.entropy(16).hex()
    parts = digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]
    return "-".join((prefix[:MAX_CLIENT_ID_CHARACTERS], *parts))


# -- members ---------------------------------------------------------------------------------


async def join_group(state: BrokerState, request: Request, message: Struct) -> Struct:
    version = request.header.api_version
    instance_id = getattr(message, "group_instance_id", None)
    client_id = (request.header.client_id or "")[:MAX_CLIENT_ID_CHARACTERS]
    join = Join(
        member_id=message.member_id,
        instance_id=instance_id,
        client_id=client_id,
        client_host=f"/{request.connection.peer[0]}",
        session_timeout_ms=message.session_timeout,
        rebalance_timeout_ms=getattr(message, "rebalance_timeout", message.session_timeout),
        protocol_type=message.protocol_type,
        protocols=tuple((it.name, bytes(it.metadata)) for it in message.protocols),
        new_member_id=new_id(state, instance_id or client_id),
        requires_member_id=version >= _FIRST_WITH_MEMBER_ID,
        may_skip_assignment=version >= _FIRST_WITH_SKIPPING,
    )
    try:
        _check_names(join)
        answer = await ask_group(
            state,
            message.group_id,
            lambda groups, token, now_ms: groups.join(token, message.group_id, join, now_ms),
        )
    except KafkaError as error:
        answer = refused_join(error.code, message.member_id)
    if version < _FIRST_WITH_NULL_PROTOCOL:
        answer.protocol_name = answer.protocol_name or ""
    return answer


def _check_names(join: Join) -> None:
    names = [join.protocol_type, join.instance_id or "", *(name for name, _ in join.protocols)]
    if max(len(it.encode()) for it in names) > MAX_ID_BYTES:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Names have at most {MAX_ID_BYTES} bytes")


async def sync_group(state: BrokerState, request: Request, message: Struct) -> Struct:
    assignments = {it.member_id: bytes(it.assignment) for it in message.assignments}
    try:
        return await ask_group(
            state,
            message.group_id,
            lambda groups, token, now_ms: groups.sync(token, message, assignments, now_ms),
        )
    except KafkaError as error:
        if error.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # Whoever led the rebalance before took what was known of it along: join again.
            return refused_sync(ErrorCode.REBALANCE_IN_PROGRESS)
        return refused_sync(error.code)


async def heartbeat(state: BrokerState, request: Request, message: Struct) -> Struct:
    try:
        return await ask_group(
            state,
            message.group_id,
            lambda groups, token, now_ms: groups.heartbeat(token, message, now_ms),
        )
    except KafkaError as error:
        if error.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # As Kafka does: sessions begin anew after loading, and aiokafka ends for the code.
            return Struct(error_code=0)
        return Struct(error_code=int(error.code))


async def leave_group(state: BrokerState, request: Request, message: Struct) -> Struct:
    several = request.header.api_version >= _FIRST_WITH_SEVERAL_LEAVING
    leaving = message.members if several else [Struct(member_id=message.member_id)]
    try:
        answer = await ask_group(
            state,
            message.group_id,
            lambda groups, token, now_ms: groups.leave(token, message.group_id, leaving, now_ms),
        )
    except KafkaError as error:
        return Struct(error_code=int(error.code), members=[])
    if not several:
        answer.error_code = answer.members[0].error_code
    return answer


# -- administration --------------------------------------------------------------------------


async def describe_groups(state: BrokerState, request: Request, message: Struct) -> Struct:
    tells_operations = getattr(message, "include_authorized_operations", False)

    async def describe(group_id: str) -> Struct:
        try:
            answer = await ask_group(
                state, group_id, lambda groups, token, now_ms: groups.describe(token, group_id)
            )
        except KafkaError as error:
            answer = Struct(
                group_id=group_id, group_state="", protocol_type="", protocol_data="", members=[]
            )
            refuse(answer, error)
            if error.code == ErrorCode.GROUP_ID_NOT_FOUND:
                answer.group_state = "Dead"
                if request.header.api_version < _FIRST_WITH_NOT_FOUND:
                    answer.error_code = 0
        if tells_operations and not answer.error_code:
            answer.authorized_operations = GROUP_OPERATIONS
        return answer

    return Struct(groups=await asyncio.gather(*map(describe, message.groups)))


async def list_groups(state: BrokerState, request: Request, message: Struct) -> Struct:
    """Those that this node coordinates: whoever wants all asks all nodes."""
    states = getattr(message, "states_filter", [])
    types = getattr(message, "types_filter", [])
    answer = Struct(error_code=0, groups=[])
    for shard in state.coordinators.shards(OFFSETS_TOPIC):
        try:
            found = await shard.ask(
                lambda groups, token, now_ms: groups.list_all(token, states, types)
            )
            answer.groups += found.groups
        except KafkaError as error:
            if error.code != ErrorCode.NOT_COORDINATOR:
                answer.error_code = int(error.code)
    return answer


async def delete_groups(state: BrokerState, request: Request, message: Struct) -> Struct:
    async def delete(group_id: str) -> Struct:
        result = Struct(group_id=group_id, error_code=0)
        try:
            await ask_group(
                state, group_id, lambda groups, token, now_ms: groups.delete(token, group_id)
            )
        except KafkaError as error:
            result.error_code = int(error.code)
        return result

    names = dict.fromkeys(message.groups_names)
    return Struct(results=await asyncio.gather(*map(delete, names)))
