"""The replicas that this node holds: opened, looked up, kept up, mended, closed, removed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from sapwood.disk import Disk, SyncFailed
from sapwood.log import CorruptLog, Log, SegmentCache
from sapwood.raft import START, Group, HardState, Timing, Vote, Voter
from sapwood.raft.roles import NEVER
from sapwood.replica.applying import apply
from sapwood.replica.clock import NodeClock
from sapwood.replica.exchange import Exchange, Peers
from sapwood.replica.notes import Extent, Identity, Notes
from sapwood.replica.partition import GroupKey, Partition
from sapwood.replica.peers import NoPeers
from sapwood.replica.plan import Plan, Settings, directory_name, key_of
from sapwood.replica.raft_log import GroupLog
from sapwood.wire.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

UPKEEP_INTERVAL_S = 1.0
_UPKEEP_AT_ONCE = 100
"""Partitions between two turns for others: a node may have thousands."""
ALONE = Voter(0, 0)
_UPKEEP_PER_TURN = 500
DAMAGED = ".damaged-"
"""What is in the name of a directory that was set aside."""


class JournalFailed(Exception):
    """What this node's replicas promise can't be made durable any more."""


def _log_failure(removal: asyncio.Future[None]) -> None:
    if not removal.cancelled() and (error := removal.exception()) is not None:
        logger.warning("files of a deleted topic stay until the next start: %s", error)


@dataclass(slots=True, frozen=True)
class _Unopened:
    """A replica whose log could not be opened, and why."""

    plan: Plan
    reason: str
    may_be_retried: bool
    """A full disk or too many open files pass; damage doesn't."""
    was_open: bool = False
    """Since the node started, so how it had stopped says nothing of this log."""


class Replicas:
    """Opening may cost time; looking up is one dictionary access."""

    def __init__(
        self,
        disk: Disk,
        data_dir: str,
        now_ms: Callable[[], int],
        *,
        me: Voter = ALONE,
        peers: Peers | None = None,
        entropy: Callable[[int], bytes] = os.urandom,
        timing: Timing | None = None,
        heartbeat_s: float = 0.15,
        on_opened: Callable[[Partition], None] = lambda partition: None,
        on_unwanted: Callable[[Partition], None] = lambda partition: None,
        on_role_changed: Callable[[Partition], None] = lambda partition: None,
        on_expired: Callable[[Partition], None] | None = None,
    ) -> None:
        self._disk = disk
        self._directory = f"{data_dir}/logs"
        disk.makedirs(self._directory)
        self._notes = Notes(disk, f"{data_dir}/journal")
        self._now_ms = now_ms
        self._me = me
        self._entropy = entropy
        self._timing = timing or Timing()
        self._on_opened = on_opened
        self._on_unwanted = on_unwanted
        self._on_role_changed = on_role_changed
        self._on_expired = on_expired
        self.clock = NodeClock(self._notes, now_ms)
        self._cache = SegmentCache()
        self._partitions: dict[GroupKey, Partition] = {}
        """By topic id: a topic that is made again under its old name is another one."""
        self._plans: dict[GroupKey, Plan] = {}
        self._noted: dict[GroupKey, Extent] = {}
        self._unopened: dict[GroupKey, _Unopened] = {}
        self._removals: set[asyncio.Task[None]] = set()
        self._discarding: set[GroupKey] = set()
        """Moved to other nodes, and their files are still here."""
        self._compaction: asyncio.Task[None] | None = None
        self._compacting: Partition | None = None
        self.offline_total = 0
        self.mended_total = 0
        self._turn = 0
        self.cutting = asyncio.Lock()
        self.exchange = Exchange(
            me.node,
            peers or NoPeers(),
            self._partitions.get,
            partial(apply, self, now_ms),
            self._notes.flush,
            clock=self.clock,
            entropy=entropy,
            timing=self._timing,
            heartbeat_s=heartbeat_s,
        )

    def __iter__(self) -> Iterator[Partition]:
        yield from self._partitions.values()

    def find(self, topic_id: bytes, index: int) -> Partition | None:
        return self._partitions.get((topic_id, index))

    def get(self, topic_id: bytes, index: int) -> Partition:
        partition = self._partitions.get((topic_id, index))
        if partition is not None:
            return partition
        unopened = self._unopened.get((topic_id, index))
        if unopened is not None:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"Partition {unopened.plan.topic}-{index} is offline: {unopened.reason}",
            )
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"Partition {index} is not on this node")

    def offline(self) -> list[tuple[str, int, str]]:
        """Topic, partition and reason of all that can't be served."""
        failed = [(p.topic, p.index, p.offline_reason) for p in self if p.offline_reason]
        return failed + [
            (it.plan.topic, it.plan.index, it.reason) for it in self._unopened.values()
        ]

    # -- opening -----------------------------------------------------------------------------

    async def begin(self) -> None:
        """From here on a crash is an unclean stop."""
        self._notes.begin()
        await self._notes.flush()
        self.exchange.start()

    def open(self, plan: Plan) -> Partition | None:
        """Recover or create a replica; None if its log can't be trusted: then it is offline."""
        self._plans[plan.key] = plan
        if plan.key in self._discarding:
            return None  # wanted again: it is opened when what it was is gone
        partition = self._recover(plan)
        if partition is not None:
            self._admit(partition)
        return partition

    def _noted_who(self, partition: Partition, done: asyncio.Future[None]) -> None:
        if not done.cancelled() and done.exception() is None:
            partition.identity_is_durable = True
            if partition.offline_reason is None:
                partition.sync()

    def _admit(self, partition: Partition) -> None:
        self._partitions[partition.key] = partition
        self._on_opened(partition)
        if not partition.identity_is_durable:
            self._notes.flush().add_done_callback(lambda done: self._noted_who(partition, done))
        if partition.log.position != partition.log.durable_position:
            # After a kill the tail lives in the page cache alone: nobody may count on it before.
            partition.sync()
        self.exchange.know_leader(partition)
        partition.tell(Group.tick, asyncio.get_running_loop().time())

    def _recover(self, plan: Plan) -> Partition | None:
        extent = self._notes.extent(*plan.key)
        unopened = self._unopened.get(plan.key)
        was_open = unopened is not None and unopened.was_open
        try:
            log = Log.open(
                self._disk,
                self._path(plan),
                plan.settings.log,
                durable_end=extent.durable_end,
                clean=self._notes.was_clean and not was_open,
                now_ms=self._now_ms(),
                cache=self._cache,
            )
            group_log = GroupLog(log, self.hybrid_now, self._now_ms)
            # The first of its name here is the one that the metadata means, if any.
            first = Identity(HardState(), self._me.incarnation)
            identity = self._identity(plan, group_log, first)
        except (CorruptLog, OSError, ValueError) as error:
            if plan.key not in self._unopened:
                self.offline_total += 1
                logger.error("partition %s-%d is offline: %s", plan.topic, plan.index, error)
            passes = isinstance(error, OSError)
            self._unopened[plan.key] = _Unopened(plan, str(error), passes, was_open)
            return None
        self.clock.observe(log.last_hlc)
        group = Group(
            Voter(self._me.node, identity.incarnation),
            group_log,
            plan.first_voters,
            identity.state,
            high_watermark=min(extent.high_watermark, log.end_offset),
            timing=self._timing,
            now=asyncio.get_running_loop().time(),
        )
        partition = Partition(
            plan.topic, plan.topic_id, plan.index, log, plan.settings.rules, group, self
        )
        partition.target = plan.target
        partition.identity_is_durable = log.config.flush != "os" or identity is not first
        self._noted[plan.key] = extent
        return partition

    def _identity(self, plan: Plan, log: GroupLog, first: Identity) -> Identity:
        noted = self._notes.identity(*plan.key)
        voters = plan.first_voters if log.voters is None else log.voters[1]
        if plan.settings.log.flush != "os" or len(voters) == 1:
            return noted or first
        if noted is None and log.position == START:
            # It has promised nothing yet, and won't before this is durable, so no stop before
            # now can have cost it anything.
            self._notes.note_identity(*plan.key, first)
            return first
        if self._notes.was_clean or self._notes.kept_its_memory:
            return noted or first
        return self._rename(plan.key, noted or first)

    def _known(self, key: GroupKey) -> Identity:
        return self._notes.identity(*key) or Identity(HardState(), self._me.incarnation)

    def _rename(self, key: GroupKey, old: Identity) -> Identity:
        """A replica that may have forgotten what it promised must not vote as the one it was."""
        new = Identity(old.state, int.from_bytes(self._entropy(7), "big"))
        self._notes.note_identity(*key, new)
        return new

    def _path(self, plan: Plan) -> str:
        return f"{self._directory}/{directory_name(plan.topic, plan.topic_id, plan.index)}"

    def on_disk(self) -> list[GroupKey]:
        """The replicas that have files here, wanted or not."""
        found = (key_of(name) for name in self._disk.list(self._directory))
        return [key for key in found if key is not None]

    # -- the metadata changes ----------------------------------------------------------------

    def configure(self, topic_id: bytes, settings: Settings) -> None:
        for key, plan in list(self._plans.items()):
            if key[0] != topic_id:
                continue
            self._plans[key] = plan = replace(plan, settings=settings)
            partition = self._partitions.get(key)
            if partition is not None:
                partition.log.config = settings.log
                partition.rules = settings.rules
            if key in self._unopened:
                self._unopened[key] = replace(self._unopened[key], plan=plan)

    def retarget(self, topic_id: bytes, index: int, target: Sequence[int]) -> None:
        plan = self._plans.get((topic_id, index))
        if plan is not None:
            self._plans[plan.key] = replace(plan, target=tuple(target))
        partition = self._partitions.get((topic_id, index))
        if partition is not None:
            partition.target = tuple(target)
            self.exchange.attend(partition)

    def remove(self, topic_id: bytes) -> None:
        """Drop a deleted topic's replicas at once, and their files soon."""
        self.exchange.leaders.forget_topic(topic_id)
        gone = [key for key in self._plans if key[0] == topic_id]
        directories = [self._path(self._plans[key]) for key in gone]
        partitions = [it for it in map(self._drop, gone) if it is not None]
        self._notes.forget_topic(topic_id)
        self._in_background(self._let_go(partitions, directories))

    def remove_replica(self, key: GroupKey) -> None:
        """Drop a replica that has been moved to other nodes.

        Should it be moved back, it has forgotten what it acknowledged: it must not vote as the one
        that did, whom the others may still count by the voters that they know of.
        """
        plan = self._plans.get(key)
        if plan is None or key in self._discarding:
            return
        partition = self._drop(key)
        self._rename(key, self._known(key))
        self._notes.note_extent(*key, Extent())
        self._discarding.add(key)
        self._in_background(self._discard(plan, [] if partition is None else [partition]))

    def _drop(self, key: GroupKey) -> Partition | None:
        del self._plans[key]
        self._unopened.pop(key, None)
        self._noted.pop(key, None)
        partition = self._partitions.pop(key, None)
        if partition is not None:
            partition.delete()
            self.exchange.gone(partition)
        return partition

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        removal = asyncio.create_task(work)
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)

    async def _let_go(self, gone: list[Partition], directories: list[str]) -> None:
        if self._compacting in gone:
            await self._end_compaction()
        for partition in gone:
            partition.log.discard()
            await asyncio.sleep(0)  # a topic may have thousands
        for directory in directories:
            self._remove_directory(directory)

    async def _discard(self, plan: Plan, partitions: list[Partition]) -> None:
        try:
            # Before any file goes: who finds none must not take itself for the one that had them.
            await self._notes.flush()
            await self._let_go(partitions, [])
            await self._disk.offload(partial(self._disk.remove, self._path(plan)))
        except OSError as error:
            logger.warning("files of %s-%d stay: %s", plan.topic, plan.index, error)
        finally:
            self._discarding.discard(plan.key)
        wanted = self._plans.get(plan.key)
        if wanted is not None:
            self.open(wanted)

    def remove_files(self, topic_ids: set[bytes]) -> None:
        """Only ever of topics that the metadata log says were deleted."""
        for name in self._disk.list(self._directory):
            key = key_of(name)
            if key is not None and key[0] in topic_ids:
                self._remove_directory(f"{self._directory}/{name}")

    def _remove_directory(self, path: str) -> None:
        # Off the loop: to free a large file takes a file system its time.
        self._disk.offload(partial(self._disk.remove, path)).add_done_callback(_log_failure)

    # -- upkeep ------------------------------------------------------------------------------

    async def upkeep(self) -> None:
        """Note durable ends, delete what retention allows, compact, mend; about once a second."""
        now_ms = self._now_ms()
        self._turn += 1
        # Of thousands each has its turn every few seconds only: looking costs, too.
        turns = 1 + len(self._partitions) // _UPKEEP_PER_TURN
        for number, partition in enumerate(list(self)[self._turn % turns :: turns]):
            if number % _UPKEEP_AT_ONCE == 0:
                await asyncio.sleep(0)
            if partition.offline_reason is not None:
                continue
            if partition.log.failed is not None:
                # A sync that nobody waited for: one of a segment that was closed, or of a topic
                # that acknowledges before it syncs.
                partition.take_offline(str(partition.log.failed))
                continue
            self._note_extent(partition)
            if not partition.has_leader and partition.group.deadline == NEVER:
                # One without a vote never asks around; it may have been told of the leader before.
                self.exchange.know_leader(partition)
            try:
                partition.log.roll_if_due(now_ms)
                self._retain(partition, now_ms)
            except OSError as error:
                logger.warning(
                    "retention of %s failed and will be tried again: %s", partition, error
                )
            except CorruptLog as error:
                partition.take_offline(str(error))
        await self._let_go_for_want_of_room()
        self._retry_unopened()
        # Before what else needs the journal, so that nobody takes its end for a passing trouble.
        try:
            await self._notes.flush()
        except SyncFailed as error:
            raise JournalFailed(str(error)) from error
        await self._mend()
        if self._compaction is None or self._compaction.done():
            self._compaction = asyncio.create_task(self._compact())

    def _retain(self, partition: Partition, now_ms: int) -> None:
        """Only a leader decides what goes, since only it can ask who holds what back; the others
        follow it in this, too."""
        log = partition.log
        limit_offset = log.start_offset
        if partition.leads and log.has_expired(now_ms, partition.high_watermark):
            if self._on_expired is None:
                limit_offset = partition.high_watermark
            else:
                self._on_expired(partition)
        log.retain(now_ms, limit_offset)

    async def _compact(self) -> None:
        """One log after the other, since each may keep a helper process busy for long."""
        for partition in list(self):
            log = partition.log
            if partition.offline_reason is not None or "compact" not in log.config.cleanup_policy:
                continue
            self._compacting = partition
            try:
                await log.compact(self._now_ms(), partition.last_stable_offset)
            except CorruptLog as error:
                partition.take_offline(str(error))
            except Exception as error:  # of whatever kind: the next log's turn comes all the same
                logger.warning("compaction of %s failed: %s", partition, error, exc_info=True)
            finally:
                self._compacting = None

    async def _end_compaction(self) -> None:
        """It leaves a log as it was; the next upkeep begins again."""
        if self._compaction is not None:
            self._compaction.cancel()
            await asyncio.wait([self._compaction])

    async def _let_go_for_want_of_room(self) -> None:
        """A replica that a full disk has stopped is opened again as what it was.

        To refill it would cost the group a voter that has forgotten nothing, and a second one
        lost at that time would be one too many.
        """
        for partition in [it for it in self if it.lacks_room]:
            if self._compacting is partition:
                await self._end_compaction()
            try:
                await partition.log.prepare_to_close()
            except OSError as error:
                logger.error("%s can't be opened again: %s", partition, error)
                partition.lacks_room, partition.may_be_mended = False, True
                continue
            plan = self._plans.get(partition.key)
            if plan is not None and self._partitions.get(partition.key) is partition:
                partition.log.discard()
                del self._partitions[partition.key]
                self._unopened[partition.key] = _Unopened(plan, "no room", True, was_open=True)

    def _retry_unopened(self) -> None:
        """Open what could not be opened for want of room or of descriptors."""
        for it in list(self._unopened.values()):
            if not it.may_be_retried:
                continue
            partition = self._recover(it.plan)
            if partition is not None:
                del self._unopened[it.plan.key]
                self._admit(partition)
                logger.info("partition %s could be opened after all", partition)

    async def _mend(self) -> None:
        """Refill damaged replicas from the others, under a new identity; nothing is deleted.

        Only while another node leads the group: else this may be the last copy there is.
        """
        damaged = [key for key, it in self._unopened.items() if not it.may_be_retried]
        damaged += [p.key for p in self if p.offline_reason is not None and p.may_be_mended]
        for key in damaged:
            known = self.exchange.leaders.get(key)
            if known is not None and known.leader != self._me.node:
                await self.refill(key)

    async def refill(self, key: GroupKey) -> Partition | None:
        """Begin a replica anew, empty and as another one: what it promised is forgotten."""
        plan = self._plans.get(key)
        if plan is None:
            return None
        self._rename(key, self._known(key))
        self._notes.note_extent(*key, Extent())
        await self._notes.flush()
        if self._plans.get(key) is not plan:
            return None
        partition = self._partitions.get(key)
        if partition is not None:
            if self._compacting is partition:
                await self._end_compaction()
            partition.log.discard()
            del self._partitions[key]
        path = self._path(plan)
        self._disk.rename(path, f"{path}{DAMAGED}{self._now_ms()}")
        self._disk.sync_dir(self._directory)
        self._unopened.pop(key, None)
        self.mended_total += 1
        name = f"{plan.topic}-{plan.index}"
        logger.warning("%s is refilled from the others; the damaged one is kept beside it", name)
        return self.open(plan)

    async def close(self) -> None:
        """A clean stop: all synced, all ends noted, so that the next start needs no scan."""
        await self.exchange.close()
        for removal in self._removals:
            removal.cancel()  # the next start removes the rest
        await self._end_compaction()
        is_clean = True
        await self._prepare_to_close()
        for partition in list(self):
            try:
                partition.check_online()
                partition.log.close()
            except (KafkaError, OSError) as error:
                # Its log was not closed, so the next start must not take it for whole.
                is_clean = False
                logger.error("%s was not closed: %s", partition, error)
                continue
            self._note_extent(partition)
        if is_clean:
            self._notes.stopped_cleanly()
        await self._notes.flush()

    async def _prepare_to_close(self) -> None:
        """Sync all logs together: one after the other, thousands would take half a minute."""
        syncs = []
        for partition in self:
            if partition.offline_reason is None:
                with contextlib.suppress(OSError):  # `close` meets it again, and says so
                    syncs.append(partition.log.prepare_to_close())
        await asyncio.gather(*syncs, return_exceptions=True)

    def _note_extent(self, partition: Partition) -> None:
        if partition.is_being_cut:
            return  # a lower end was noted, and must stay until the log is cut
        extent = Extent(partition.log.durable_end, partition.high_watermark)
        if self._noted.get(partition.key) != extent:
            self._notes.note_extent(*partition.key, extent)
            self._noted[partition.key] = extent

    # -- host of the partitions --------------------------------------------------------------

    def hybrid_now(self) -> int:
        return self.clock.now()

    def save(self, partition: Partition, state: HardState) -> None:
        identity = Identity(state, partition.group.me.incarnation)
        self._notes.note_identity(*partition.key, identity)

    def ask(self, partition: Partition, vote: Vote, nodes: tuple[int, ...]) -> None:
        self.exchange.ask(partition, vote, nodes)

    def hand_over(self, partition: Partition, node: int, epoch: int) -> None:
        self.exchange.hand_over(partition, node, epoch)

    def role_changed(self, partition: Partition) -> None:
        if self._partitions.get(partition.key) is partition:
            self.exchange.role_changed(partition)
            self._on_role_changed(partition)

    def progressed(self, partition: Partition, *, appended: bool) -> None:
        self.exchange.progressed(partition, appended=appended)

    def went_offline(self, partition: Partition) -> None:
        self.offline_total += 1
        logger.error("partition %s is offline: %s", partition, partition.offline_reason)
        self.exchange.gone(partition)

    def grew(self, partition: Partition) -> None:
        """Not only every second: in one a fast disk takes more than a restart should read."""
        if self._partitions.get(partition.key) is not partition:
            return  # deleted
        self._note_extent(partition)
        # Upkeep flushes again, and reports what is wrong with the journal.
        self._notes.flush().add_done_callback(lambda done: done.cancelled() or done.exception())

    def lower_extent(self, partition: Partition, offset: int) -> asyncio.Future[None]:
        noted = self._noted.get(partition.key, Extent())
        extent = self._noted[partition.key] = Extent(*(min(it, offset) for it in noted))
        self._notes.note_extent(*partition.key, extent)
        self.clock.note()
        return self._notes.flush()

    def unwanted(self, partition: Partition) -> None:
        self._on_unwanted(partition)
