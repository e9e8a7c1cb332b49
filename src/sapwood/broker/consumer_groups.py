"""ConsumerGroupHeartbeat and ConsumerGroupDescribe: the newer group protocol."""

import asyncio

from sapwood.broker.groups import (
    GROUP_OPERATIONS,
    MAX_CLIENT_ID_CHARACTERS,
    ask_group,
    new_id,
)
from sapwood.broker.refusal import refuse
from sapwood.broker.state import BrokerState
from sapwood.coordinator.consumer_heartbeat import checked_heartbeat
from sapwood.coordinator.consumer_member import JOINING
from sapwood.server import Request
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError

_FIRST_WITH_IDS_OF_CLIENTS = 1


async def heartbeat(state: BrokerState, request: Request, message: Struct) -> Struct:
    client_id = (request.header.client_id or "")[:MAX_CLIENT_ID_CHARACTERS]
    makes_id = request.header.api_version < _FIRST_WITH_IDS_OF_CLIENTS
    if makes_id and message.member_epoch == JOINING and not message.member_id:
        message.member_id = new_id(state, client_id)
    try:
        beat = checked_heartbeat(message, client_id, f"/{request.connection.peer[0]}")
        return await ask_group(
            state,
            message.group_id,
            lambda groups, token, now_ms: groups.consumer_heartbeat(
                token, message.group_id, beat, now_ms
            ),
        )
    except KafkaError as error:
        refused = Struct(member_id=None, member_epoch=0, heartbeat_interval=0, assignment=None)
        refuse(refused, error)
        return refused


async def describe(state: BrokerState, request: Request, message: Struct) -> Struct:
    async def describe_one(group_id: str) -> Struct:
        try:
            answer = await ask_group(
                state,
                group_id,
                lambda groups, token, now_ms: groups.describe_consumers(token, group_id),
            )
        except KafkaError as error:
            return _unknown(group_id, error)
        if message.include_authorized_operations:
            answer.authorized_operations = GROUP_OPERATIONS
        return answer

    return Struct(groups=await asyncio.gather(*map(describe_one, message.group_ids)))


def _unknown(group_id: str, error: KafkaError) -> Struct:
    answer = Struct(
        group_id=group_id,
        group_state="Dead" if error.code is ErrorCode.GROUP_ID_NOT_FOUND else "",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=[],
    )
    refuse(answer, error)
    return answer
