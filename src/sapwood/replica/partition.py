"""One replica of a partition: its log, its part in the group, and who waits for it."""

from __future__ import annotations

import asyncio
import errno
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, TypeVar

from sapwood.log import CorruptLog, Log, OffsetOutOfRange
from sapwood.raft import (
    Ask,
    Changed,
    Committed,
    Elected,
    Follower,
    Group,
    HandOver,
    Leader,
    Position,
    Progress,
    RaftViolation,
    Save,
    Sync,
    Voter,
    Voters,
)
from sapwood.raft.quorum import majority
from sapwood.raft.roles import NEVER
from sapwood.replica.acceptance import Rules, accept
from sapwood.replica.host import CommitListener, Host, SnapshotState
from sapwood.replica.transacting import (
    Guard,
    check_marker,
    check_transaction,
    guard_of,
    marker_batch,
)
from sapwood.wire import batch as wire_batch
from sapwood.wire.batch import BatchHeader
from sapwood.wire.control import TransactionMarker
from sapwood.wire.errors import ErrorCode, KafkaError

T = TypeVar("T")
P = ParamSpec("P")
# Too many open files, or no memory: says nothing about the disk.
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
GROWTH_BYTES = 32 << 20
_LENGTH = struct.Struct(">I")
OnCommitted = Callable[[KafkaError | None], None]
GroupKey = tuple[bytes, int]
"""Topic id and partition."""


@dataclass(slots=True, frozen=True)
class Appended:
    base_offset: int
    timestamp_ms: int
    """The append time, or -1 where records carry their producer's."""


def _not_leader(message: str) -> KafkaError:
    return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)


class Partition:
    """Single-threaded on the event loop; nothing here blocks but writes to the page cache."""

    def __init__(
        self,
        topic: str,
        topic_id: bytes,
        index: int,
        log: Log,
        rules: Rules,
        group: Group,
        host: Host,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.log = log
        self.rules = rules
        self.group = group
        self.target: tuple[int, ...] = ()
        """The nodes that should hold it, the preferred leader first."""
        self.hurries = False
        """Whether followers are told at once what is committed."""
        self.is_for_all = False
        """Whether nodes may follow that are neither voters nor to become any."""
        self.state_of: SnapshotState | None = None
        self.on_replica_progress: Callable[[], None] | None = None
        self.identity_is_durable = True
        """Else it syncs whatever its settings say: a power cut might make it forget that it ever
        held anything, and it would vote for those who don't."""
        self.is_being_cut = False
        self.may_be_mended = True
        self.lacks_room = False
        """A full disk is why it is offline; nothing is wrong with what it holds."""
        self.offline_reason: str | None = None
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._refusal: KafkaError | None = None
        self._led_epoch: int | None = None
        self._leaderless_since = self._loop.time()
        self._grown_bytes = 0
        self._waiting: deque[tuple[int, OnCommitted]] = deque()
        self._waiting_for_disk: deque[tuple[int, OnCommitted]] = deque()
        self._listeners: dict[CommitListener, None] = {}
        self._uncommitted_bytes = 0

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    # -- questions ---------------------------------------------------------------------------

    @property
    def key(self) -> GroupKey:
        return self.topic_id, self.index

    @property
    def high_watermark(self) -> int:
        return self.group.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """What readers of committed transactions may read up to."""
        return self.log.last_stable_offset(self.high_watermark)

    @property
    def leader_epoch(self) -> int:
        return self.group.term

    @property
    def voters(self) -> Voters:
        return self.group.voters

    @property
    def durable(self) -> Position:
        """What this replica holds for good, or what the topic's settings take for that."""
        log = self.log
        return Position(*(log.durable_position if self._syncs else log.position))

    @property
    def _syncs(self) -> bool:
        return self.log.config.flush != "os" or not self.identity_is_durable

    @property
    def leads(self) -> bool:
        return isinstance(self.group.role, Elected) and self.offline_reason is None

    @property
    def is_confirmed(self) -> bool:
        """Whether this leader knows what its predecessors had committed."""
        return isinstance(self.group.role, Leader)

    @property
    def has_leader(self) -> bool:
        return isinstance(self.group.role, Elected | Follower)

    def leaderless_s(self) -> float:
        """For how long nobody has been known to lead."""
        return max(0.0, self._loop.time() - self._leaderless_since)

    @property
    def role(self) -> str:
        return "offline" if self.offline_reason else type(self.group.role).__name__.lower()

    @property
    def followers(self) -> dict[Voter, Progress]:
        """The replicas that fetch from here, if this one leads."""
        role = self.group.role
        return role.progress if isinstance(role, Elected) else {}

    def known_to_followers(self, now: float) -> list[int]:
        """What each replica that is heard of knows to be committed."""
        role = self.group.role
        if not isinstance(role, Elected):
            return []
        return [
            progress.high_watermark
            for replica, progress in role.progress.items()
            if role.hears(replica, now - self.group.timing.silence_s)
        ]

    def check_online(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    def check_leads(self) -> None:
        """Asked with every request: a leader that was asleep must not trust its memory."""
        self._check_role(self.group.has_quorum)

    def _check_role(self, is_leader: Callable[[float], bool]) -> None:
        self.check_online()
        if not self.leads or not is_leader(self._loop.time()):
            raise _not_leader(f"{self} is not led by this node: look it up")

    def check_confirmed(self) -> None:
        self.check_leads()
        if not self.is_confirmed:
            raise _not_leader(f"{self} has a new leader that is not ready yet")

    def check_newest(self) -> None:
        """For answers that may not miss what anybody has committed: a successor doesn't wait until
        nobody hears of this leader, so it may lead already while this one was asleep."""
        self.check_confirmed()
        self._check_stays()

    def _check_stays(self) -> None:
        role = self.group.role
        if isinstance(role, Elected) and role.successor is not None:
            raise _not_leader(f"{self} is being handed to another leader")

    def check_enough_replicas(self) -> None:
        """Refuse what could not be acknowledged before anything is written."""
        needed = max(self.rules.min_insync_replicas, majority(len(self.voters)))
        if needed == 1:
            return
        in_sync = len(self.group.in_sync(self._loop.time()))
        if in_sync < needed and self.is_confirmed:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{in_sync} replicas of {self} are in sync, {needed} are needed",
            )

    # -- writing -----------------------------------------------------------------------------

    def produce(
        self,
        records: memoryview | None,
        now_ms: int,
        on_committed: OnCommitted | None,
        *,
        everywhere: bool = True,
        verified: Guard | None = None,
    ) -> Appended:
        """Append a producer's batch if this partition's rules let it in.

        `everywhere`: acknowledged by a quorum; else once this node holds it. `verified`: what held
        before the coordinator said that the batch's transaction is in progress.
        """
        batch, header, append_time_ms = accept(records, self.rules, now_ms)
        return self.append(
            batch,
            header,
            now_ms,
            append_time_ms,
            on_committed,
            everywhere=everywhere,
            verified=verified,
        )

    def append(
        self,
        batch: memoryview,
        header: BatchHeader,
        now_ms: int,
        append_time_ms: int,
        on_committed: OnCommitted | None,
        *,
        everywhere: bool = True,
        verified: Guard | None = None,
    ) -> Appended:
        """Append one checked batch; `on_committed` is called once, maybe before this returns.

        An exact repeat of a batch of the same producer is not stored again, and is acknowledged
        when the original is committed, never before.
        """
        self._check_may_append(everywhere=everywhere)
        log = self.log
        waiting = self._waiting if everywhere else self._waiting_for_disk
        if header.producer_id >= 0:
            duplicate = log.producers.check(header, now_ms)
            if duplicate is not None:
                if on_committed is not None:
                    waiting.append((duplicate + header.record_count, on_committed))
                    self._release()
                original = log.producers.original(header)
                if append_time_ms >= 0 and original is not None:
                    append_time_ms = original.timestamp
                return Appended(duplicate, append_time_ms)
            check_transaction(log, header, self.leader_epoch, verified)
        base_offset = self._store(batch, header, now_ms)
        if on_committed is not None:
            waiting.append((log.end_offset, on_committed))
        self._stored()
        return Appended(base_offset, append_time_ms)

    def end_transaction(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool,
        coordinator_epoch: int,
        now_ms: int,
        on_committed: OnCommitted | None,
    ) -> None:
        """Append the marker that decides a producer's transaction.

        Written even if there is none, and as often as it is asked for: its epoch fences whoever
        used the producer id before.
        """
        self._check_may_append()
        check_marker(self.log, producer_id, producer_epoch, coordinator_epoch)
        marker = TransactionMarker(committed, coordinator_epoch)
        batch = marker_batch(producer_id, producer_epoch, marker)
        self._store(batch, wire_batch.read_header(batch), now_ms)
        if on_committed is not None:
            self._waiting.append((self.log.end_offset, on_committed))
        self._stored()

    def guard_of(self, producer_id: int) -> Guard:
        """To be taken before a coordinator is asked about a transaction."""
        return guard_of(self.log, self.leader_epoch, producer_id)

    def _check_may_append(self, *, everywhere: bool = True) -> None:
        # On a busy machine followers are heard of late. Writers who are sent away for that ask for
        # the metadata of all their partitions and come back: more load. Who waits for a quorum
        # can't be misled by a leader that was replaced meanwhile.
        self._check_role(self.group.holds_office if everywhere else self.group.has_quorum)
        self._check_stays()

    def _store(self, batch: memoryview, header: BatchHeader, now_ms: int) -> int:
        log = self.log
        base_offset = log.end_offset
        epoch = self.group.term
        wire_batch.patch_offset(batch, 0, base_offset, epoch)
        header = header._replace(base_offset=base_offset, leader_epoch=epoch)
        try:
            log.append(batch, header, self._host.hybrid_now(), now_ms)
        except OSError as error:
            # Nothing of the batch counts: the log's end has not moved, and the next append
            # overwrites what may have been written. So a full disk costs only the writers.
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"Partition {self} can't be written: {error}"
            ) from error
        self._uncommitted_bytes += header.size
        return base_offset

    def _stored(self) -> None:
        self._host.progressed(self, appended=True)
        self.sync()

    def sync(self) -> None:
        """See to it that what was appended becomes durable, and counts once it is."""
        if self._syncs:
            # Asked for even while a sync runs: the disk then goes on with the next one by itself.
            self.log.sync().add_done_callback(self._synced)
        else:
            self._now_durable()

    async def advance_start(self, offset: int) -> None:
        """Forget all records below `offset`, and return when no crash can bring them back."""
        self.check_online()
        try:
            await self.log.advance_start(offset)
        except OSError as error:
            if self.log.failed is not None:
                raise self._failed(error) from error
            self.check_online()  # it may have been deleted
            # A disk may be too full even for this, and deleting is how people make room.
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"The new start of {self} could not be stored: {error}",
            ) from error

    # -- reading -----------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, *, at_least_one: bool, stable: bool = False
    ) -> list[memoryview]:
        """Whole committed batches from that of `offset` on; `stable`: of decided transactions."""
        self.check_online()
        limit = self.last_stable_offset if stable else self.high_watermark
        try:
            return self.log.read(offset, max_bytes, limit, at_least_one=at_least_one)
        except OffsetOutOfRange:
            if offset >= self.log.start_offset and not self.is_confirmed:
                # Somebody else may hold it: only who knows all that is committed may say no.
                raise KafkaError(
                    ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self} has not come to {offset} here"
                ) from None
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Offset {offset} of {self} isn't there: it holds {self.log.start_offset} to "
                f"{self.high_watermark}",
            ) from None
        except (CorruptLog, OSError) as error:
            raise self._failed(error) from error

    def look_up(self, question: Callable[[Log], T]) -> T:
        """Ask the log something that reads its files."""
        self.check_online()
        try:
            return question(self.log)
        except (CorruptLog, OSError) as error:
            raise self._failed(error) from error

    def listen(self, listener: CommitListener) -> None:
        self._listeners[listener] = None

    def unlisten(self, listener: CommitListener) -> None:
        self._listeners.pop(listener, None)

    # -- consensus ---------------------------------------------------------------------------

    def hand_over(self, node: int) -> bool:
        """Have another node lead; False if it can't now."""
        return bool(self.tell(Group.hand_over, node, self._loop.time()))

    def recover(self) -> None:
        """Go on without the others, who may have had more: an operator's last resort."""
        self.tell(Group.recover, self._loop.time())

    def step(self) -> None:
        """Carry out what the group has decided."""
        try:
            while effects := self.group.take():
                for effect in effects:
                    self._carry_out(effect)
        except (CorruptLog, OSError, RaftViolation) as error:
            self._stop_for(error)

    def tell(
        self, news: Callable[Concatenate[Group, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T | None:
        """Tell the group some news and carry out what follows; None if that put an end to it."""
        if self.offline_reason is not None:
            return None
        try:
            answer = news(self.group, *args, **kwargs)
        except (CorruptLog, OSError, RaftViolation) as error:
            self._stop_for(error)
            return None
        self.step()
        return answer

    def _stop_for(self, error: Exception) -> None:
        # After a violation nothing here can be trusted to mend itself: people have to look.
        self.lacks_room = isinstance(error, OSError) and error.errno == errno.ENOSPC
        self.may_be_mended = not (self.lacks_room or isinstance(error, RaftViolation))
        self.take_offline(str(error))

    def _carry_out(self, effect: object) -> None:
        match effect:
            case Save(state):
                self._host.save(self, state)
            case Ask(vote, nodes):
                self._host.ask(self, vote, nodes)
            case Sync():
                self._stored()
            case Changed():
                self._role_changed()
            case Committed():
                self._committed()
            case HandOver(node, epoch):
                self._host.hand_over(self, node, epoch)

    def _role_changed(self) -> None:
        led = self.group.term if isinstance(self.group.role, Elected) else None
        if self.has_leader:
            self._leaderless_since = NEVER
        elif self._leaderless_since == NEVER:
            self._leaderless_since = self._loop.time()
        if led != self._led_epoch:
            if self._led_epoch is not None:
                error = KafkaError(
                    ErrorCode.NOT_LEADER_OR_FOLLOWER,
                    f"{self} is no longer led by this node; what was sent may or may not be kept",
                )
                self._fail_waiting(error)
                self._wake_listeners()
            self._led_epoch = led
        if self.is_confirmed:
            self._wake_listeners()
        self._host.role_changed(self)

    def _committed(self) -> None:
        size, self._uncommitted_bytes = self._uncommitted_bytes, 0
        self._grown_bytes += size
        if self._grown_bytes >= GROWTH_BYTES:
            self._grown_bytes = 0
            self._host.grew(self)
        self._release()
        # Nobody may ask here: it forgets what is of no more use.
        self.log.last_stable_offset(self.high_watermark)
        # A follower doesn't know how many bytes that was: whoever waits there looks again.
        size = size if isinstance(self.group.role, Elected) else 0
        for listener in list(self._listeners):
            listener.committed(self, size)
        if self.hurries or isinstance(self.group.role, Elected):
            self._host.progressed(self, appended=False)

    def _release(self) -> None:
        """Answer those whose wait is over."""
        waiting = self._waiting
        if waiting:
            offset = self.group.acknowledged(self.rules.min_insync_replicas)
            while waiting and waiting[0][0] <= offset:
                waiting.popleft()[1](None)
        waiting = self._waiting_for_disk
        if waiting:
            offset = self.durable.offset
            while waiting and waiting[0][0] <= offset:
                waiting.popleft()[1](None)

    def _synced(self, future: asyncio.Future[int]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            self.take_offline(f"a sync to disk failed: {error}")
        else:
            self._now_durable()

    def _now_durable(self) -> None:
        if self.offline_reason is not None:
            return
        self.tell(Group.synced, self.durable)
        if isinstance(self.group.role, Follower):
            self._host.progressed(self, appended=False)
        elif self._waiting_for_disk:
            self._release()

    def replica_progressed(self) -> None:
        """A follower holds or knows more."""
        if self.on_replica_progress is not None:
            self.on_replica_progress()
        if self._waiting and self.rules.min_insync_replicas > 1:
            self._release()

    # -- snapshots, for replicas that are too far behind -------------------------------------

    def snapshot(self) -> bytes:
        state = b"" if self.state_of is None else self.state_of.save()
        log = self.log.snapshot()
        return _LENGTH.pack(len(log)) + log + state

    def restore(self, snapshot: bytes, now_ms: int) -> None:
        """Forget the log, and begin anew where the leader's begins."""
        (length,) = _LENGTH.unpack_from(snapshot)
        log_end = _LENGTH.size + length
        state = snapshot[log_end:]
        try:
            # First: a crash in between must not leave a log that begins with what follows from
            # records that nobody has here.
            if self.state_of is not None:
                self.state_of.keep(state)
            self.log.reset(snapshot[_LENGTH.size : log_end], now_ms)
        except (CorruptLog, OSError) as error:
            self.take_offline(str(error))
            return
        if self.state_of is not None:
            self.state_of.load(state)
        self.tell(Group.told, self.log.start_offset)
        self.sync()

    # -- the end -----------------------------------------------------------------------------

    def take_offline(self, reason: str) -> None:
        if self.offline_reason is not None:
            return
        self.offline_reason = reason
        self._host.went_offline(self)
        message = f"Partition {self} is offline: {reason}"
        self._refuse(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message))

    def delete(self) -> None:
        """Its topic is gone, or it is moved away: so it is for everybody who still waits."""
        self.offline_reason = "it was deleted"
        message = f"{self} was deleted"
        self._refuse(KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message))

    def _failed(self, error: Exception) -> KafkaError:
        """What the asker is to be told; the partition goes offline unless it will pass."""
        if not (isinstance(error, OSError) and error.errno in _PASSING):
            self.take_offline(str(error))
        message = f"Partition {self} can't be read: {error}"
        return self._refusal or KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message)

    def _refuse(self, error: KafkaError) -> None:
        self._refusal = error
        self._fail_waiting(error)
        self._wake_listeners()

    def _fail_waiting(self, error: KafkaError) -> None:
        waiting = [*self._waiting, *self._waiting_for_disk]
        self._waiting.clear()
        self._waiting_for_disk.clear()
        for _, on_committed in waiting:
            on_committed(error)

    def _wake_listeners(self) -> None:
        for listener in list(self._listeners):
            listener.committed(self, 0)
