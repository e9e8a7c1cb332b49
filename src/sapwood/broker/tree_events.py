"""What happens to the tree as records of a topic, for whoever listens: `__sapwood_tree`, in JSON.

The active controller writes them after the change is committed. They are kept until they are
written, within bounds; a controller that dies takes its last ones with it: they are news, and the
tree itself is in the metadata.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from sapwood.broker.leading import current_leader
from sapwood.broker.state import BrokerState
from sapwood.metadata import controller
from sapwood.metadata import records as r
from sapwood.metadata.image import Topic
from sapwood.replica import PeerUnreachable
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError
from sapwood.wire.records import encode_batch

logger = logging.getLogger(__name__)

TOPIC = "__sapwood_tree"
MOST_WAITING = 10_000
MOST_AT_ONCE = 500
RETRY_S = 0.5
ANSWER_S = 5.0

_NAMES = {
    r.EdgeRegistered: "registered",
    r.EdgeConfirmed: "attached",
    r.EdgeDetached: "detached",
    r.EdgeRemoved: "forgotten",
}


class TreeEvents:
    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._waiting: deque[tuple[int, bytes]] = deque(maxlen=MOST_WAITING)
        self._news = asyncio.Event()

    def add(self, records: Sequence[r.Record], erased: Iterable[int]) -> None:
        now_ms = self._state.now_ms()
        found = [event for it in records if (event := event_of(it)) is not None]
        found += [{"event": "erased", "node": node_id} for node_id in erased]
        for event in found:
            self._waiting.append((now_ms, msgspec.json.encode({"time_ms": now_ms, **event})))
        if found:
            self._news.set()

    async def run(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._waiting:
                events = [self._waiting.popleft() for _ in range(self._count())]
                try:
                    await self._write(events)
                except (KafkaError, PeerUnreachable, OSError) as error:
                    logger.debug("events of the tree wait: %s", error)
                    self._waiting.extendleft(reversed(events))
                    await asyncio.sleep(RETRY_S)

    def _count(self) -> int:
        return min(len(self._waiting), MOST_AT_ONCE)

    async def _write(self, events: Sequence[tuple[int, bytes]]) -> None:
        state, topic = self._state, await self._topic()
        batch = memoryview(encode_batch([(at, None, value, ()) for at, value in events]))
        leader, _ = current_leader(state, topic, 0)
        if leader == state.config.node_id:
            partition = state.partition(topic.name, b"", 0)
            partition.produce(batch, state.now_ms(), None)
            return
        message = Struct(
            transactional_id=None,
            acks=-1,
            timeout=int(1000 * ANSWER_S),
            topic_data=[
                Struct(
                    topic_id=topic.topic_id, partition_data=[Struct(index=0, records=bytes(batch))]
                )
            ],
        )
        answer = await state.peers.request(leader, Api.PRODUCE, message, timeout_s=ANSWER_S)
        code = answer.responses[0].partition_responses[0].error_code
        if code:
            raise KafkaError(ErrorCode(code), f"{TOPIC} can't be written to now")

    async def _topic(self) -> Topic:
        state = self._state
        if TOPIC not in state.image.topics:
            async with state.store.changing() as image:
                if TOPIC not in image.topics:
                    record = controller.create_topic(
                        image, TOPIC, state.entropy(16), partition_count=1
                    )
                    await state.store.commit([record])
        return controller.find_topic(state.image, TOPIC)


def event_of(record: r.Record) -> dict[str, Any] | None:
    """None: the tree has not changed by it."""
    if isinstance(record, r.NodeChanged) and record.alive is not None:
        return {"event": "core_up" if record.alive else "core_down", "node": record.node_id}
    if not isinstance(record, r.EdgeRecord):
        return None
    event: dict[str, Any] = {"event": _NAMES[type(record)], "node": record.edge_id}
    if isinstance(record, r.EdgeRegistered | r.EdgeConfirmed):
        event |= {"host": record.host, "port": record.port, "father": record.father}
    if isinstance(record, r.EdgeConfirmed) and record.healing_ms:
        event["healing_ms"] = record.healing_ms
    return event
