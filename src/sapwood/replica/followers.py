"""The leader's end of a link: one session per node, for all groups that it follows here.

A request lists what changed at the follower: positions, and what is durable, which is its
acknowledgement. It is answered as soon as there is something to tell, else after a heartbeat; the
next request releases it at once. Any answer says that this node still leads every listed group.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from sapwood.log import OffsetOutOfRange
from sapwood.raft import (
    NOBODY,
    Behind,
    Diverging,
    Elected,
    Group,
    InStep,
    NotLeader,
    Position,
    Verdict,
    Voter,
)
from sapwood.replica.asking import MOST_GROUPS
from sapwood.replica.partition import GroupKey, Partition
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError

SHARE_BYTES = 256 << 10
"""Of one group in one answer: those that catch up must not hold up those that keep up."""
QUIET_S = 0.02
"""How long news of the high watermark alone may wait for company."""
_REMEMBERED = 8

_ENTRY = struct.Struct(">4xI12xq4xi7xi")
"""Payload length; base offset, leader epoch and last offset delta of the batch in it."""


def end_of_entries(view: memoryview, start: Position) -> Position:
    """Where a log ends that had `start` and got these entries."""
    at, end = 0, start
    while at < len(view):
        length, base_offset, epoch, delta = _ENTRY.unpack_from(view, at)
        end = Position(epoch, base_offset + delta + 1)
        at += 20 + length
    return end


@dataclass(slots=True)
class Member:
    """A group that the node follows here."""

    partition: Partition
    voter: Voter
    epoch: int
    sent: Position
    """How far the follower is once it has what was sent."""
    sent_in: int = -1
    told_high_watermark: int = -1
    told_start: int = -1


class FollowerSession:
    """A contact of all groups in it: alive as long as the node answers what it was sent."""

    def __init__(
        self,
        node: int,
        session_id: int,
        look_up: Callable[[GroupKey], Partition | None],
        hybrid_now: Callable[[], int],
        is_closing: Callable[[], bool],
        heartbeat_s: float,
        on_lost: Callable[[FollowerSession], None],
        on_joining: Callable[[Partition], None],
    ) -> None:
        self.node = node
        self.session_id = session_id
        self.heard_at = float("-inf")
        self.promised = -1
        """By the node while it followed all that it follows here: whatever it left before, it has
        said so in the same request or an earlier one."""
        self.members: dict[GroupKey, Member] = {}
        self._look_up = look_up
        self._hybrid_now = hybrid_now
        self._is_closing = is_closing
        self._heartbeat_s = heartbeat_s
        self._on_lost = on_lost
        self._on_joining = on_joining
        self._was_silent = False
        self._loop = asyncio.get_running_loop()
        self._dirty: dict[GroupKey, None] = {}
        self._refusals: list[Struct] = []
        self._sequence = -1
        self._answered: deque[tuple[int, float]] = deque(maxlen=_REMEMBERED)
        self._max_bytes = 0
        self._parked: asyncio.Future[Struct] | None = None
        self._heartbeat: asyncio.TimerHandle | None = None
        self._waking: asyncio.Handle | None = None
        self._wakes_soon = False
        self._is_lost = False

    def request(self, message: Struct) -> asyncio.Future[Struct]:
        if message.sequence != self._sequence + 1:
            raise KafkaError(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                f"request {message.sequence} of a session that is at {self._sequence}",
            )
        self._answer()
        self._sequence = message.sequence
        self._max_bytes = message.max_bytes
        self._hear(message.seen)
        now = self._loop.time()
        for it in message.forgotten:
            self.drop((it.topic_id, it.partition))
        for it in message.groups:
            self._take(it, message.seen, now)
        self.promised = max(self.promised, message.promised)
        future: asyncio.Future[Struct] = self._loop.create_future()
        future.add_done_callback(self._abandoned)
        self._parked = future
        wait_s = min(self._heartbeat_s, message.max_wait_ms / 1000)
        self._heartbeat = self._loop.call_later(wait_s, self._answer)
        if self._refusals or self._has_data():
            # Not at once: what this request led to may come from the disk a moment later.
            self._wake(0.0)
        elif self._dirty:
            self._wake(QUIET_S)
        return future

    def turned_silent(self, since: float) -> bool:
        """Whether the node was not heard of since then, though it was when this was asked last."""
        is_silent = self.heard_at < since
        turned, self._was_silent = is_silent and not self._was_silent, is_silent
        return turned

    def wake(self, partition: Partition, *, urgent: bool) -> None:
        key = partition.key
        if key in self.members:
            self._dirty[key] = None
            if self._parked is not None:
                self._wake(0.0 if urgent else QUIET_S)

    def hurry(self) -> None:
        """Answer at once, so that the node says anew what it promises."""
        self._wake(0.0)

    def stepped_down(self, partition: Partition) -> None:
        """Before anything else is answered the follower learns that its leader is none."""
        member = self.members.pop(partition.key, None)
        if member is not None:
            self._refuse_as(partition, NotLeader(partition.group.term, partition.group.leader))
            self._wake(0.0)

    def drop(self, key: GroupKey) -> None:
        member = self.members.pop(key, None)
        if member is not None:
            member.partition.tell(Group.forget, member.voter)

    def lose(self) -> None:
        """The node is gone, or has begun a new session."""
        if self._is_lost:
            return
        self._is_lost = True
        self.heard_at = float("-inf")
        for handle in (self._heartbeat, self._waking):
            if handle is not None:
                handle.cancel()
        for key in list(self.members):
            self.drop(key)
        parked, self._parked = self._parked, None
        if parked is not None and not parked.done():
            parked.cancel()
        self._on_lost(self)

    # -- inside ------------------------------------------------------------------------------

    def _hear(self, seen: int) -> None:
        """The node was alive after the answer that it has seen was sent: so much is certain.

        A request may have lain in a buffer while this process was stopped.
        """
        for sequence, at in self._answered:
            if sequence <= seen:
                self.heard_at = max(self.heard_at, at)

    def _take(self, it: Struct, seen: int, now: float) -> None:
        key = (it.topic_id, it.partition)
        partition = self._look_up(key)
        if partition is None or partition.offline_reason is not None:
            self.members.pop(key, None)
            self._refuse(it.topic_id, it.partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return
        voter = Voter(self.node, it.incarnation)
        position = Position(it.last_epoch, it.fetch_offset)
        durable = Position(it.durable_epoch, it.durable_offset)
        verdict: Verdict | None = partition.tell(
            Group.fetched, voter, it.epoch, position, durable, it.high_watermark, self, now
        )
        match verdict:
            case InStep():
                self._keep(partition, voter, it.epoch, position, seen)
            case Diverging(epoch, offset):
                self.members.pop(key, None)
                self._refusals.append(
                    self._entry(partition, diverging_epoch=epoch, diverging_offset=offset)
                )
            case Behind():
                self.members.pop(key, None)
                self._refusals.append(self._entry(partition, snapshot=partition.snapshot()))
            case NotLeader():
                self.members.pop(key, None)
                self._refuse_as(partition, verdict)
            case None:
                self.members.pop(key, None)
                self._refuse(it.topic_id, it.partition, ErrorCode.KAFKA_STORAGE_ERROR)

    def _keep(
        self, partition: Partition, voter: Voter, epoch: int, position: Position, seen: int
    ) -> None:
        member = self.members.get(partition.key)
        if member is None or member.voter != voter or member.epoch != epoch:
            self.members[partition.key] = Member(partition, voter, epoch, position)
        elif seen >= member.sent_in:
            member.sent = position  # else it was sent before the last answer arrived
        self._dirty[partition.key] = None
        partition.replica_progressed()
        if voter not in partition.voters:
            self._on_joining(partition)

    def _has_data(self) -> bool:
        return any(
            self.members[key].sent < self.members[key].partition.log.position
            for key in self._dirty
            if key in self.members
        )

    def _wake(self, delay_s: float) -> None:
        if self._parked is None:
            return
        if delay_s == 0.0 and not self._wakes_soon:
            if self._waking is not None:
                self._waking.cancel()
            self._waking, self._wakes_soon = self._loop.call_soon(self._answer), True
        elif self._waking is None:
            self._waking = self._loop.call_later(delay_s, self._answer)

    def _answer(self) -> None:
        for handle in (self._heartbeat, self._waking):
            if handle is not None:
                handle.cancel()
        self._heartbeat = self._waking = None
        self._wakes_soon = False
        parked, self._parked = self._parked, None
        if parked is None or parked.done():
            return
        self._answered.append((self._sequence, self._loop.time()))
        parked.set_result(
            Struct(
                error_code=0,
                hlc=self._hybrid_now(),
                session_id=self.session_id,
                groups=self._collect(),
                closing=self._is_closing(),
            )
        )

    def _abandoned(self, parked: asyncio.Future[Struct]) -> None:
        if parked.cancelled():
            self.lose()

    def _collect(self) -> list[Struct]:
        groups, self._refusals = self._refusals, []
        budget = self._max_bytes
        for key in list(self._dirty):
            if budget <= 0 or len(groups) >= MOST_GROUPS:
                break
            del self._dirty[key]
            member = self.members.get(key)
            if member is None:
                continue
            entry, size, is_all = self._serve(member, min(budget, SHARE_BYTES))
            if entry is not None:
                groups.append(entry)
            budget -= size
            if not is_all:
                self._dirty[key] = None  # behind those that have waited
        return groups

    def _serve(self, member: Member, budget: int) -> tuple[Struct | None, int, bool]:
        """What to tell about one group, its size, and whether that is all there is."""
        partition = member.partition
        if not isinstance(partition.group.role, Elected) or partition.group.term != member.epoch:
            self.members.pop(partition.key, None)
            return self._not_leader(partition), 0, True
        if self._is_unwanted(member):
            self.drop(partition.key)
            code = int(ErrorCode.REPLICA_NOT_AVAILABLE)
            return self._entry(partition, error_code=code), 0, True
        log = partition.log
        views: list[memoryview] = []
        if member.sent < log.position:
            try:
                views = partition.look_up(
                    lambda log: log.read_replica(member.sent.epoch, member.sent.offset, budget)
                )
            except OffsetOutOfRange:  # retention has overtaken it
                self.members.pop(partition.key, None)
                partition.tell(Group.fell_behind, member.voter)
                return self._entry(partition, snapshot=partition.snapshot()), 0, True
            except KafkaError:  # offline now
                self.members.pop(partition.key, None)
                return self._not_leader(partition), 0, True
        if (
            not views
            and member.told_high_watermark == partition.high_watermark
            and member.told_start == log.start_offset
        ):
            return None, 0, True
        entry = self._entry(
            partition,
            after_epoch=member.sent.epoch,
            after_offset=member.sent.offset,
            entries=views or None,
        )
        for view in views:
            member.sent = end_of_entries(view, member.sent)
        if views:
            member.sent_in = self._sequence
        member.told_high_watermark = partition.high_watermark
        member.told_start = log.start_offset
        return entry, sum(map(len, views)), member.sent >= log.position

    def _is_unwanted(self, member: Member) -> bool:
        """Whether the replica may go for good: until its removal is committed it may be needed, by
        the voters that a power cut would leave."""
        partition, node = member.partition, self.node
        is_wanted = member.voter in partition.voters or node in partition.target
        is_placed = bool(partition.target) and not partition.is_for_all
        return is_placed and not is_wanted and partition.group.voters_are_committed

    def _entry(self, partition: Partition, **fields: object) -> Struct:
        return Struct(
            **{
                "topic_id": partition.topic_id,
                "partition": partition.index,
                "error_code": 0,
                "epoch": partition.group.term,
                "leader": partition.group.leader,
                "high_watermark": partition.high_watermark,
                "start_offset": partition.log.start_offset,
                "diverging_epoch": -1,
                "diverging_offset": -1,
                "snapshot": None,
                "entries": None,
                **fields,
            }
        )

    def _not_leader(self, partition: Partition) -> Struct:
        return self._entry(partition, error_code=int(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def _refuse_as(self, partition: Partition, verdict: NotLeader) -> None:
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        self._refuse(partition.topic_id, partition.index, code, verdict.epoch, verdict.leader)

    def _refuse(
        self, topic_id: bytes, index: int, code: ErrorCode, epoch: int = -1, leader: int = NOBODY
    ) -> None:
        self._refusals.append(
            Struct(
                topic_id=topic_id,
                partition=index,
                error_code=int(code),
                epoch=epoch,
                leader=leader,
                high_watermark=-1,
                start_offset=-1,
                diverging_epoch=-1,
                diverging_offset=-1,
                snapshot=None,
                entries=None,
            )
        )
