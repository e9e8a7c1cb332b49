"""From the outbox to the cluster, once each and in order.

Consume, process, produce: the next batches of all queues, and their new positions, are one
transaction of the edge's own producer. If its end is in doubt, the next one is begun, which settles
it, and the cluster is asked where the queues stand. Messages that go by keys of their own are sent
as they are, one by one, and recognised by those if they come twice.

The client that does this is one like any other, and comes in by this edge's own door.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from sapwood.client import AsyncKafkaClient
from sapwood.client.groups import NO_MEMBER, Committed
from sapwood.client.packed import SealedBatch
from sapwood.client.procedures import wait_for
from sapwood.client.subscriber import SEPARATOR
from sapwood.client.transactions import Transactor
from sapwood.edge.outbox import Outbox, Queue
from sapwood.edge.uplink import Uplink
from sapwood.log import CorruptLog, LogFailed
from sapwood.wire.batch import BatchHeader
from sapwood.wire.errors import ErrorCode, KafkaError

log = logging.getLogger("sapwood.edge")

CLIENT_ID = "sapwood-outbox"
GROUP = "__sapwood_outbox"
RUN_BYTES = 256 << 10
MOST_KEYED = 200
"""In one run: each takes a round trip, and a transaction has its time."""
MOST_QUEUES = 64
"""At once."""
PAUSE_S = 0.25
LONGEST_PAUSE_S = 5.0
MISSING_S = 5.0
"""How long a topic is looked for before it counts as deleted."""
TIMEOUT_MS = 60_000

REFUSED_FOR_GOOD = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,  # of a key: another message's looks the same
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }
)
_MISSING = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION)

_PATIENCE: dict[str, Any] = {"api_timeout_ms": 30_000, "delivery_timeout_ms": 30_000}

Run = list[tuple[BatchHeader, memoryview]]


class Delivering:
    def __init__(self, outbox: Outbox, uplink: Uplink, node_id: int, address: str) -> None:
        """`address` is where this edge listens."""
        self._outbox = outbox
        self._uplink = uplink
        self._name = f"{GROUP}{SEPARATOR}{node_id}"
        self._address = address
        self._client: AsyncKafkaClient | None = None
        self._transactor: Transactor | None = None
        self._missing_since: dict[str, float] = {}
        self._suspects: dict[Queue, int] = {}
        """One of these was refused: each goes alone, and this much of it at a time."""
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._part()

    async def _run(self) -> None:
        pause_s = PAUSE_S
        while True:
            if not self._outbox:
                await self._rest()
            await self._uplink.connected()
            has_moved = False
            try:
                has_moved = await self._sweep()
            except (KafkaError, OSError, LogFailed) as error:
                log.warning("the outbox waits: %s", error)
            except Exception:
                log.exception("the outbox waits")
                await self._part()
            pause_s = PAUSE_S if has_moved else min(2 * pause_s, LONGEST_PAUSE_S)
            if not has_moved and self._outbox:
                await asyncio.sleep(pause_s)

    async def _rest(self) -> None:
        """Until there is something to do; meanwhile nobody is connected for nothing."""
        await self._part()
        self._outbox.news.clear()
        if not self._outbox:
            await self._outbox.news.wait()

    async def _part(self) -> None:
        client, self._client, self._transactor = self._client, None, None
        if client is not None:
            await client.close()

    def _connection(self) -> tuple[AsyncKafkaClient, Transactor]:
        if self._client is None or self._transactor is None:
            self._client = AsyncKafkaClient(
                [self._address], client_id=CLIENT_ID, allow_auto_create=False, **_PATIENCE
            )
            self._transactor = self._client.core.transactor(
                self._name, TIMEOUT_MS, self._client.now_ms
            )
        return self._client, self._transactor

    # -- one transaction ---------------------------------------------------------------------

    async def _sweep(self) -> bool:
        """Deliver some of every queue; whether that was possible."""
        client, transactor = self._connection()
        there = await self._there(client)
        if not there:
            return False
        await client.run(transactor.begin())
        await self._find_positions(client, [it for it in there if not it.is_sure])
        self._suspects = {it: most for it, most in self._suspects.items() if it in there}
        if self._suspects:
            return await self._try_alone(client, transactor, next(iter(self._suspects)))
        runs = await self._runs(there[:MOST_QUEUES], RUN_BYTES)
        try:
            await self._deliver(client, transactor, runs)
        except KafkaError:
            self._suspects = dict.fromkeys(runs, RUN_BYTES)
            raise
        return True

    async def _try_alone(
        self, client: AsyncKafkaClient, transactor: Transactor, queue: Queue
    ) -> bool:
        """One queue, so that it holds up no other; and a batch at a time, to find the one that is
        refused."""
        max_bytes = self._suspects.pop(queue)
        runs = await self._runs([queue], max_bytes)
        try:
            await self._deliver(client, transactor, runs)
        except KafkaError as error:
            if error.code in REFUSED_FOR_GOOD and len(runs[queue]) == 1:
                await self._outbox.put_aside(queue, runs[queue], str(error))
                return True
            is_for_good = error.code in REFUSED_FOR_GOOD
            self._suspects[queue] = 1 if is_for_good else max_bytes  # behind the others
            if is_for_good:
                return True
            raise
        if runs and max_bytes == 1:
            self._suspects[queue] = 1
        return True

    async def _runs(self, queues: Iterable[Queue], max_bytes: int) -> dict[Queue, Run]:
        """What goes next, of those that have something."""
        found: dict[Queue, Run] = {}
        for queue in queues:
            if self._outbox.is_done(queue):
                continue
            try:
                run = queue.read(max_bytes)
            except CorruptLog as error:
                self._outbox.give_up(queue, error)
                continue
            if not run:
                await queue.log.sync()
                continue
            keyed = [at for at, (header, _) in enumerate(run) if header.has_producer]
            found[queue] = run[: keyed[MOST_KEYED]] if len(keyed) > MOST_KEYED else run
        return found

    async def _deliver(
        self, client: AsyncKafkaClient, transactor: Transactor, runs: dict[Queue, Run]
    ) -> None:
        if not runs:
            return
        for queue in runs:
            queue.is_sure = False
        sending = [
            asyncio.ensure_future(self._send(client, transactor, queue, run))
            for queue, run in runs.items()
        ]
        try:
            await asyncio.gather(*sending)
            ends = {queue: run[-1][0].next_offset for queue, run in runs.items()}
            positions = {it.key: Committed(end, it.name) for it, end in ends.items()}
            await client.run(transactor.commit({(self._name, NO_MEMBER): positions}))
        except KafkaError:
            await asyncio.gather(*sending, return_exceptions=True)
            await client.run(transactor.abort())
            raise
        finally:
            for task in sending:
                task.cancel()
        for queue, end in ends.items():
            queue.is_sure = True
            self._outbox.delivered(queue, end)

    async def _send(
        self, client: AsyncKafkaClient, transactor: Transactor, queue: Queue, run: Run
    ) -> None:
        """In order: what is of another kind waits for what comes before it."""
        for is_keyed, some in groupby(run, lambda it: it[0].has_producer):
            batches = [SealedBatch(queue.key, client.now_ms(), it, header) for header, it in some]
            for batch in batches:
                client.core.append_packed(batch, None if is_keyed else transactor)
            client.schedule()
            for batch in batches:
                await client.run(wait_for(batch.done))

    async def _find_positions(self, client: AsyncKafkaClient, queues: list[Queue]) -> None:
        """What the cluster has of them: the answer to a commit may have been lost, or this edge may
        have been killed before it heard of it."""
        if not queues:
            return
        keys = [it.key for it in queues]
        asked = client.core.groups.positions(self._name, keys, client.now_ms())
        found = await client.run(wait_for(asked))
        for queue in queues:
            committed = found[queue.key]
            queue.is_sure = True
            if committed.metadata == queue.name and committed.offset > queue.position:
                self._outbox.delivered(queue, committed.offset)

    async def _there(self, client: AsyncKafkaClient) -> list[Queue]:
        """The queues whose partitions have leaders. Those of topics that are gone are put aside
        after a while."""
        queues = list(self._outbox)
        topics = (await client.metadata({it.key[0] for it in queues})).topics
        now = self._loop.time()
        there = []
        for queue in queues:
            topic = topics[queue.key[0]]
            partition = topic.partitions.get(queue.key[1])
            is_gone = topic.error_code in _MISSING or not (topic.error_code or partition)
            if not is_gone:
                self._missing_since.pop(queue.name, None)
            elif now - self._missing_since.setdefault(queue.name, now) >= MISSING_S:
                await self._put_all_aside(queue)
            if partition is not None and partition.leader >= 0:
                there.append(queue)
        return there

    async def _put_all_aside(self, queue: Queue) -> None:
        while queue.records and (run := queue.read(RUN_BYTES)):
            await self._outbox.put_aside(queue, run, "there is no such topic or partition any more")
        self._missing_since.pop(queue.name, None)
