"""The follower's end of a link: one session with a node, for all groups that it leads.

At most two requests are under way: one that the leader keeps until it has news, and one with what
became durable meanwhile, which releases it. Silence, or a node that is known to be gone, ends the
following of all groups at once.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol

from sapwood.raft import Follower, Group, Position
from sapwood.replica.asking import MOST_GROUPS
from sapwood.replica.clock import NodeClock
from sapwood.replica.partition import GroupKey, Partition
from sapwood.replica.patience import Patience
from sapwood.server.link import PeerUnreachable
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct

logger = logging.getLogger(__name__)

MAX_BYTES = 1 << 20
_MOST_UNDER_WAY = 2
_RETRY_S = 0.02
SECOND_LOOK_S = 0.05


class Request(Protocol):
    def __call__(
        self, node: int, api: Api, message: Struct, *, timeout_s: float, data: bool = False
    ) -> Awaitable[Struct]: ...


class LeaderLink:
    def __init__(
        self,
        node: int,
        me: int,
        request: Request,
        *,
        new_session_id: Callable[[], int],
        clock: NodeClock,
        patience: Patience,
        heartbeat_s: float,
        apply: Callable[[Partition, Struct], Awaitable[None] | None],
    ) -> None:
        self.node = node
        self.groups: dict[GroupKey, Partition] = {}
        self._me = me
        self._request = request
        self._new_session_id = new_session_id
        self._clock = clock
        self._promises = False
        self._patience = patience
        self._heartbeat_s = heartbeat_s
        self._apply = apply
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._changed: dict[GroupKey, None] = {}
        self._forgotten: dict[GroupKey, None] = {}
        self._busy: set[GroupKey] = set()
        """Cutting or beginning anew: not to be asked for meanwhile."""
        self._session_id = 0
        self._sequence = 0
        self._seen = -1
        self._under_way: set[asyncio.Task[None]] = set()
        self._waking: asyncio.Handle | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._work: set[asyncio.Future[None]] = set()
        self._retry_at = 0.0
        self._is_suspect = False

    @property
    def silent_for_s(self) -> float:
        """Since its last answer, as long as anything is followed there."""
        return self._loop.time() - self._heard_at if self.groups else 0.0

    @property
    def patience_s(self) -> float:
        """How long its node may be silent."""
        return self._patience.limit_s(self._loop.time())

    def follow(self, partition: Partition) -> None:
        key = partition.key
        is_first = not self.groups
        self.groups[key] = partition
        if is_first:
            self._heard_at = self._loop.time()
            self._begin()
            self._watch_over()
        self._forgotten.pop(key, None)
        self._changed[key] = None
        self._wake()

    def unfollow(self, partition: Partition) -> None:
        key = partition.key
        if self.groups.pop(key, None) is not None:
            self._changed.pop(key, None)
            self._forgotten[key] = None
            self._wake()

    def progressed(self, partition: Partition) -> None:
        """It has more, or more of it is durable."""
        if partition.key in self.groups:
            self._changed[partition.key] = None
            self._wake()

    def close(self) -> None:
        self.groups.clear()
        self._end()

    # -- inside ------------------------------------------------------------------------------

    def _begin(self) -> None:
        """A new session: the leader knows nothing of what was said before."""
        self._session_id = self._new_session_id()
        self._sequence, self._seen = 0, -1
        self._forgotten.clear()
        self._changed = dict.fromkeys(self.groups)

    def _end(self) -> None:
        for handle in (self._waking, self._watch):
            if handle is not None:
                handle.cancel()
        self._waking = self._watch = None
        for task in self._under_way:
            task.cancel()
        self._under_way.clear()

    def _wake(self) -> None:
        if self._waking is None:
            # What else becomes durable in this turn of the loop goes along.
            delay_s = self._retry_at - self._loop.time()
            self._waking = (
                self._loop.call_later(delay_s, self._send)
                if delay_s > 0
                else self._loop.call_soon(self._send)
            )

    def _send(self) -> None:
        self._waking = None
        has_news = bool(self._changed or self._forgotten)
        room = _MOST_UNDER_WAY if has_news else 1
        if not self.groups:
            if not self._forgotten or not self._under_way:
                self._end()
                return
        elif len(self._under_way) >= room:
            return
        listed = list(itertools.islice(self._listable(), MOST_GROUPS))
        message = Struct(
            hlc=self._clock.now(),
            node_id=self._me,
            session_id=self._session_id,
            sequence=self._sequence,
            seen=self._seen,
            groups=[self._entry(self.groups[key]) for key in listed],
            forgotten=[Struct(topic_id=it[0], partition=it[1]) for it in self._forgotten],
            max_bytes=MAX_BYTES,
            max_wait_ms=int(self._heartbeat_s * 1000),
            promised=self._clock.promised if self._promises else -1,
        )
        for key in listed:
            del self._changed[key]
        self._forgotten.clear()
        task = self._loop.create_task(self._ask(message))
        self._sequence += 1
        self._under_way.add(task)
        if any(self._listable()):
            self._wake()

    def _listable(self) -> Iterator[GroupKey]:
        """Those whose news can be told now."""
        return (key for key in self._changed if key in self.groups and key not in self._busy)

    async def _ask(self, message: Struct) -> None:
        task = asyncio.current_task()
        try:
            answer = await self._request(
                self.node, Api.REPLICA_FETCH, message, timeout_s=self.patience_s, data=True
            )
        except asyncio.CancelledError:
            raise
        except PeerUnreachable as error:
            if task in self._under_way and message.session_id == self._session_id:
                self._failed(error)
            return
        finally:
            if task is not None:
                self._under_way.discard(task)
        if message.session_id != self._session_id:
            return
        if answer.error_code:
            self._failed(None)
            return
        self._clock.observe(answer.hlc)
        self._promises = answer.closing
        if answer.closing:
            self._clock.reserve()
        self._heard_at = self._loop.time()
        self._patience.heard(self._heard_at, first=not message.sequence)
        self._seen = max(self._seen, message.sequence)
        for it in answer.groups:
            partition = self.groups.get((it.topic_id, it.partition))
            if partition is not None:
                self._take(partition, it)
        self._wake()

    def _take(self, partition: Partition, it: Struct) -> None:
        key = partition.key
        if it.entries:
            self._changed[key] = None
        work = self._apply(partition, it)
        if work is None:
            return
        self._busy.add(key)
        future = asyncio.ensure_future(work)
        self._work.add(future)

        def done(future: asyncio.Future[None]) -> None:
            self._work.discard(future)
            self._busy.discard(key)
            if not future.cancelled() and (error := future.exception()) is not None:
                partition.take_offline(str(error))
            self.progressed(partition)

        future.add_done_callback(done)

    def _entry(self, partition: Partition) -> Struct:
        group = partition.group
        position, durable = Position(*partition.log.position), partition.durable
        return Struct(
            topic_id=partition.topic_id,
            partition=partition.index,
            epoch=group.term,
            incarnation=group.me.incarnation,
            last_epoch=position.epoch,
            fetch_offset=position.offset,
            durable_epoch=durable.epoch,
            durable_offset=durable.offset,
            high_watermark=group.high_watermark,
        )

    def _failed(self, error: PeerUnreachable | None) -> None:
        """The session is over. Unless the node is gone there is time to begin another one."""
        for task in self._under_way:
            task.cancel()
        self._under_way.clear()
        self._begin()
        if error is not None and error.gone:
            self._lose()
            return
        self._retry_at = self._loop.time() + _RETRY_S
        self._wake()

    def _watch_over(self) -> None:
        self._watch = None
        if not self.groups:
            self._is_suspect = False
            return
        left_s = self._heard_at + self.patience_s - self._loop.time()
        if left_s <= 0 and self._is_suspect:
            self._lose()
            return
        # If this process was held up itself, the answers lie unread: look again after reading.
        self._is_suspect = left_s <= 0
        self._watch = self._loop.call_later(max(left_s, SECOND_LOOK_S), self._watch_over)

    def _lose(self) -> None:
        groups, self.groups = self.groups, {}
        self._is_suspect = False
        self._changed.clear()
        self._forgotten.clear()
        self._end()
        logger.info("node %d is silent: %d groups lose their leader", self.node, len(groups))
        now = self._loop.time()
        for partition in groups.values():
            self._busy.discard(partition.key)
            role = partition.group.role
            if isinstance(role, Follower) and role.leader == self.node:
                partition.tell(Group.leader_lost, now)
