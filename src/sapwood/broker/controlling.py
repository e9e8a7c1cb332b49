"""What the active controller does unasked: notice who lives, and move replicas to a fair share."""

from __future__ import annotations

import asyncio
import logging

from sapwood.broker.state import BrokerState
from sapwood.metadata import records as r
from sapwood.metadata.placement import metadata_voters, plan
from sapwood.metadata.registry import change_node
from sapwood.wire.errors import KafkaError

logger = logging.getLogger(__name__)

INTERVAL_S = 0.25
DEAD_S = 3.0
"""A node that was not heard of for so long is marked dead."""
MOVES_AT_ONCE = 8


class Controlling:
    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._since: float | None = None
        self._planned: tuple[int, int] | None = None
        """What the cluster looked like when there was nothing to move."""

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = INTERVAL_S
        while True:
            await asyncio.sleep(pause_s)
            began = loop.time()
            try:
                await self._turn()
            except KafkaError as error:
                logger.info("the controller's turn failed and will be tried again: %s", error)
            except Exception:
                logger.exception("the controller's turn failed and will be tried again")
            # To look at thousands of partitions takes its time, which others need on a busy node.
            pause_s = max(INTERVAL_S, loop.time() - began)

    async def _turn(self) -> None:
        state = self._state
        if not state.store.is_controller:
            self._since = None
            return
        now = asyncio.get_running_loop().time()
        if self._since is None:
            self._since = now
            logger.info("node %d is the active controller", state.config.node_id)
        self._steer_metadata_log()
        async with state.store.changing() as image:
            records: list[r.Record] = []
            for node_id in image.nodes:
                if (alive := self._is_alive(node_id, now)) is not None:
                    records += change_node(image, node_id, alive=alive)
            if records:
                await state.store.commit(records)
                if image.edges.known:  # else nobody has planted a tree
                    state.supervising.events.add(records, ())
            seen = state.store.applied, state.replicas.exchange.leaders.version
            if seen == self._planned:
                return  # to look at thousands of partitions takes its time
            moves = plan(image, MOVES_AT_ONCE, state.moving())
            self._planned = None if moves else seen
            await state.store.commit(moves)

    def _is_alive(self, node_id: int, now: float) -> bool | None:
        """None: not known yet."""
        if node_id == self._state.config.node_id:
            return True
        if self._state.replicas.exchange.heard_of(node_id) > now - DEAD_S:
            return True
        return False if self._since is not None and now - self._since > DEAD_S else None

    def _steer_metadata_log(self) -> None:
        partition = self._state.store.partition
        current = [voter.node for voter in partition.voters]
        target = tuple(metadata_voters(self._state.image, current))
        if target and target != partition.target:
            self._state.replicas.retarget(partition.topic_id, partition.index, target)
