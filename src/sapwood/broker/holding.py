"""Retention waits for durable subscribers: before anything goes, their shard is asked.

A partition's leader asks when something has expired, so that topics in which nothing expires
cost nothing. The answer holds for what was committed when it was asked for, and is used once: a
subscription that began in the meantime has its position behind that. Without an answer nothing
is deleted.
"""

from __future__ import annotations

import asyncio
import logging

from sapwood.broker.leading import current_leader
from sapwood.broker.refusal import refuse
from sapwood.broker.state import BrokerState
from sapwood.metadata.controller import INTERNAL_TOPICS, OFFSETS_TOPIC
from sapwood.replica import Partition, PeerUnreachable
from sapwood.server import Request
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

ANSWER_S = 5.0
PAUSE_S = 5.0
"""Between two questions about one partition: subscribers may be away for weeks."""
NOBODY = -1


class Holding:
    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._asking: dict[tuple[bytes, int], asyncio.Task[None]] = {}
        self._not_before: dict[tuple[bytes, int], float] = {}

    def expired(self, partition: Partition) -> None:
        """Something in a partition that is led here may go, if nobody holds it."""
        topics = self._state.image.topics
        if partition.topic in INTERNAL_TOPICS or OFFSETS_TOPIC not in topics:
            partition.log.retain(self._state.now_ms(), partition.high_watermark)
            return
        loop = asyncio.get_running_loop()
        key = partition.key
        if key in self._asking or loop.time() < self._not_before.get(key, 0.0):
            return
        self._not_before[key] = loop.time() + PAUSE_S
        task = self._asking[key] = loop.create_task(self._retain(partition))
        task.add_done_callback(lambda _: self._asking.pop(key, None))

    async def close(self) -> None:
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _retain(self, partition: Partition) -> None:
        limit_offset = partition.high_watermark
        epoch = partition.leader_epoch
        try:
            held_offset = await self._ask(partition.topic, partition.index)
            partition.check_confirmed()
            if partition.leader_epoch == epoch:
                held = None if held_offset == NOBODY else held_offset
                partition.log.retain(self._state.now_ms(), limit_offset, held)
        except (KafkaError, PeerUnreachable, OSError) as error:
            logger.debug("nothing of %s is deleted for now: %s", partition, error)

    async def _ask(self, topic: str, index: int) -> int:
        """The lowest position of a durable subscription; NOBODY if there is none."""
        state = self._state
        node, _ = current_leader(state, *state.coordinators.place(OFFSETS_TOPIC, topic))
        message = Struct(topic=topic, partition=index)
        if node == state.config.node_id:
            return await held_offset(state, message)
        answer = await state.peers.request(node, Api.HELD_OFFSET, message, timeout_s=ANSWER_S)
        if answer.error_code:
            raise KafkaError(ErrorCode(answer.error_code), answer.error_message or "")
        return int(answer.offset)


async def held_offset(state: BrokerState, message: Struct) -> int:
    shard = state.coordinators.shard(OFFSETS_TOPIC, message.topic)
    answer = await shard.ask(
        lambda groups, token, _: groups.held(token, message.topic, message.partition)
    )
    return int(answer.offset)


async def answer_held_offset(state: BrokerState, request: Request, message: Struct) -> Struct:
    """From the node that leads a partition, to the one that coordinates its subscriptions."""
    answer = Struct(error_code=0, error_message=None, offset=NOBODY)
    try:
        answer.offset = await held_offset(state, message)
    except KafkaError as error:
        refuse(answer, error)
    return answer
