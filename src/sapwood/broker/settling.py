"""What was decided reaches every partition: markers go out until all of them are written.

A transaction that is decided has markers to write, each at the leader of its partition, wherever
that is by now. Nothing gives up on them but the end of the shard, whose successor goes on, and a
partition that is gone. Those that fall due in one turn of the loop travel together.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from sapwood.broker.coordinating import Shard
from sapwood.broker.forwarding import ask_controller
from sapwood.broker.leading import current_leader
from sapwood.broker.markers import write_markers
from sapwood.broker.state import BrokerState
from sapwood.coordinator.effects import Effect
from sapwood.coordinator.transaction import TopicPartition
from sapwood.coordinator.transactions import SendMarkers
from sapwood.replica import PeerUnreachable
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

ANSWER_S = 5.0
FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 1.0
MOST_AT_ONCE = 1000
"""Markers in one request."""

_SETTLED = {
    ErrorCode.NONE,
    # It has heard of a newer epoch, so it has nothing open of this one that could be settled.
    ErrorCode.INVALID_PRODUCER_EPOCH,
}

Errand = tuple[Struct, "asyncio.Future[Struct | None]"]


class Settling:
    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._due: dict[int, list[Errand]] = {}
        """By node: what leaves at the end of this turn."""

    def carry_out(self, shard: Shard[Any], effect: Effect) -> None:
        if isinstance(effect, SendMarkers):
            self._start(self._settle(shard, effect))

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _settle(self, shard: Shard[Any], sent: SendMarkers) -> None:
        left = dict.fromkeys(sent.partitions)
        pause_s = FIRST_PAUSE_S
        while shard.is_ready:
            try:
                for partition in await self._attempt(shard.epoch, sent, list(left)):
                    del left[partition]
                marked = [it for it in sent.partitions if it not in left]
                shard.tell(lambda machine, now_ms: machine.marked(sent, marked, now_ms))  # noqa: B023
                if not left:
                    return
            except KafkaError as error:
                logger.debug("%s can't be told of markers now: %s", shard, error)
            except Exception:
                logger.exception("markers of %s will be tried again", sent.transactional_id)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _attempt(
        self, coordinator_epoch: int, sent: SendMarkers, partitions: list[TopicPartition]
    ) -> list[TopicPartition]:
        """Those that are settled now."""
        state = self._state
        by_node: dict[int, list[TopicPartition]] = {}
        settled: list[TopicPartition] = []
        for name, index in partitions:
            topic = state.image.topics.get(name)
            if topic is None or index >= len(topic.partitions):
                if await _is_gone(state, name, index):
                    settled.append((name, index))
                continue
            leader, _ = current_leader(state, topic, index)
            if leader != -1:
                by_node.setdefault(leader, []).append((name, index))
        results = await asyncio.gather(
            *(
                self._write(node, _marker(coordinator_epoch, sent, by_node[node]))
                for node in by_node
            )
        )
        for result in results:
            for topic in () if result is None else result.topics:
                settled += [
                    (topic.name, it.partition_index)
                    for it in topic.partitions
                    if it.error_code in _SETTLED
                ]
        return settled

    # -- travelling together -----------------------------------------------------------------

    async def _write(self, node: int, marker: Struct) -> Struct | None:
        """The results of one marker; None if there was no answer."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Struct | None] = loop.create_future()
        if not self._due:
            loop.call_soon(self._leave)
        self._due.setdefault(node, []).append((marker, answered))
        return await answered

    def _leave(self) -> None:
        due, self._due = self._due, {}
        for node, errands in due.items():
            for first in range(0, len(errands), MOST_AT_ONCE):
                self._start(self._travel(node, errands[first : first + MOST_AT_ONCE]))

    async def _travel(self, node: int, errands: list[Errand]) -> None:
        markers = [marker for marker, _ in errands]
        results: list[Struct | None] = [None] * len(errands)
        try:
            found = await self._ask(node, markers)
            if len(found) == len(errands):
                results = list(found)
        except (PeerUnreachable, TimeoutError) as error:
            logger.debug("node %d has not written markers: %s", node, error)
        finally:
            for (_, answered), result in zip(errands, results, strict=True):
                if not answered.done():
                    answered.set_result(result)

    async def _ask(self, node: int, markers: list[Struct]) -> list[Struct]:
        state = self._state
        if node == state.config.node_id:
            async with asyncio.timeout(ANSWER_S):
                return await write_markers(state, markers)
        message = Struct(markers=markers)
        answer = await state.peers.request(node, Api.WRITE_TXN_MARKERS, message, timeout_s=ANSWER_S)
        results: list[Struct] = answer.markers
        return results


def _marker(coordinator_epoch: int, sent: SendMarkers, partitions: list[TopicPartition]) -> Struct:
    by_topic: dict[str, list[int]] = {}
    for topic, index in partitions:
        by_topic.setdefault(topic, []).append(index)
    return Struct(
        producer_id=sent.producer_id,
        producer_epoch=sent.producer_epoch,
        transaction_result=sent.committed,
        topics=[Struct(name=it, partition_indexes=by_topic[it]) for it in by_topic],
        coordinator_epoch=coordinator_epoch,
        transaction_version=0,
    )


async def _is_gone(state: BrokerState, name: str, index: int) -> bool:
    """Whether a partition doesn't exist any more; this node may only not have heard of it yet."""
    if not state.store.is_controller:
        message = Struct(
            topics=[Struct(topic_id=bytes(16), name=name)],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        answer = await ask_controller(state, Api.METADATA, message)
        if answer is None:
            return False
        [topic] = answer.topics
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return True
        indexes = {it.partition_index for it in topic.partitions}
        return topic.error_code == ErrorCode.NONE and index not in indexes
    found = state.image.topics.get(name)
    return found is None or index >= len(found.partitions)
