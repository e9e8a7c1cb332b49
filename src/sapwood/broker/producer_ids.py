"""Ids for producers, out of blocks that the controller reserves: one record serves a thousand.

A node has a block of its own and asks for the next before it runs out. So a producer gets its id
at any node at once, even at one that is cut off from the others, which clients may still reach.
What is left of a block when its node stops is never given out.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from sapwood.broker.store import MetadataStore
from sapwood.metadata import controller
from sapwood.replica import PeerUnreachable
from sapwood.replica.exchange import Peers
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

FEW = controller.PRODUCER_ID_BLOCK // 4
"""So many are left when the next block is asked for."""
PATIENCE_S = 8.0
ANSWER_S = 2.0
RETRY_S = 0.1


class ProducerIds:
    def __init__(self, me: int, store: MetadataStore, peers: Peers) -> None:
        self._me = me
        self._store = store
        self._peers = peers
        self._blocks: deque[range] = deque()
        self._filling: asyncio.Task[None] | None = None

    def prepare(self) -> None:
        """Have enough of them, soon."""
        if self._filling is None and sum(map(len, self._blocks)) < FEW:
            self._filling = asyncio.ensure_future(self._fill())

    async def take(self) -> int:
        """The next id; waits if there is none, but not for long."""
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while not self._blocks:
            self.prepare()
            left_s = deadline - asyncio.get_running_loop().time()
            if self._filling is None or left_s <= 0:
                raise KafkaError(
                    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "No controller gives out producer ids"
                )
            await asyncio.wait({self._filling}, timeout=left_s)
        block = self._blocks.popleft()
        if len(block) > 1:
            self._blocks.appendleft(block[1:])
        self.prepare()
        return block[0]

    async def reserve(self) -> range:
        """A block that nobody else has or will have; only the active controller can."""
        async with self._store.changing() as image:
            first = image.next_producer_id
            record = controller.reserve_producer_ids(image)
            await self._store.commit([record])
            return range(first, record.next_id)

    async def close(self) -> None:
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.gather(self._filling, return_exceptions=True)

    async def _fill(self) -> None:
        try:
            while True:
                try:
                    self._blocks.append(await self._next_block())
                    return
                except (KafkaError, PeerUnreachable) as error:
                    logger.debug("no producer ids yet: %s", error)
                await asyncio.sleep(RETRY_S)
        finally:
            self._filling = None

    async def _next_block(self) -> range:
        leader = self._store.controller_id
        if leader in (-1, self._me):
            return await self.reserve()
        answer = await self._peers.request(
            leader, Api.RESERVE_PRODUCER_IDS, Struct(), timeout_s=ANSWER_S
        )
        if answer.error_code:
            raise KafkaError(ErrorCode(answer.error_code), answer.error_message or "")
        return range(answer.first_id, answer.next_id)
