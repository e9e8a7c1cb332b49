"""What a follower does with its leader's answer about one group."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from sapwood.log import BadEntry, CorruptLog
from sapwood.raft import NOBODY, Follower, Group
from sapwood.replica.partition import Partition
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

FULL_DISK_PAUSE_S = 1.0
UNKNOWN_PAUSE_S = 0.1


class Keeper(Protocol):
    cutting: asyncio.Lock

    def lower_extent(self, partition: Partition, offset: int) -> asyncio.Future[None]:
        """Note durably that the log may end there."""

    def unwanted(self, partition: Partition) -> None:
        """Its leader says that it is no replica, and nobody wants it to be one."""


def apply(
    keeper: Keeper, now_ms: Callable[[], int], partition: Partition, it: Struct
) -> Awaitable[None] | None:
    """At once, or as work to be waited for before the group is asked for again."""
    group = partition.group
    if it.error_code:
        return _refused(keeper, partition, it)
    if it.epoch != group.term or not isinstance(group.role, Follower):
        return None  # of a leader that it no longer follows
    if it.diverging_offset >= 0:
        return _cut(keeper, partition, it)
    if it.snapshot is not None:
        return _begin_anew(keeper, now_ms, partition, it)
    if it.entries and (it.after_epoch, it.after_offset) == partition.log.position:
        # Else something in between is missing here, which would leave a hole: it is asked for anew.
        try:
            partition.log.append_entries(it.entries, now_ms())
        except BadEntry as error:
            # Nothing but a fault on the way explains it: what is whole was taken, ask again.
            logger.warning("%s: a damaged entry from node %d: %s", partition, it.leader, error)
            return asyncio.sleep(FULL_DISK_PAUSE_S)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                partition.take_offline(str(error))
                return None
            logger.warning("%s can't be written, it will be tried again: %s", partition, error)
            return asyncio.sleep(FULL_DISK_PAUSE_S)
        except CorruptLog as error:
            partition.take_offline(str(error))
            return None
        partition.sync()
    partition.tell(Group.told, it.high_watermark)
    _advance_start(partition, it.start_offset)
    return None


def _refused(keeper: Keeper, partition: Partition, it: Struct) -> Awaitable[None] | None:
    now = asyncio.get_running_loop().time()
    group = partition.group
    if it.error_code == ErrorCode.REPLICA_NOT_AVAILABLE:
        if it.epoch >= group.term:
            keeper.unwanted(partition)
        # If it stays, the leader has yet to hear that it is wanted: ask again in a while.
        return asyncio.sleep(UNKNOWN_PAUSE_S)
    if it.epoch >= group.term and it.leader not in (NOBODY, group.leader):
        partition.tell(Group.announced, now, it.leader, it.epoch)
    else:
        partition.tell(Group.leader_refused, now)
    return None


async def _cut(keeper: Keeper, partition: Partition, it: Struct) -> None:
    cut = partition.group.meeting_point(it.diverging_epoch, it.diverging_offset)
    async with _lowering(keeper, partition, cut.offset):
        if partition.group.term == it.epoch:
            logger.info("%s: cutting back to %s, as its leader says", partition, tuple(cut))
            partition.tell(Group.diverged, it.diverging_epoch, it.diverging_offset)


async def _begin_anew(
    keeper: Keeper, now_ms: Callable[[], int], partition: Partition, it: Struct
) -> None:
    async with _lowering(keeper, partition, 0):
        if partition.group.term == it.epoch:
            logger.info("%s: beginning anew at %d, as its leader does", partition, it.start_offset)
            partition.restore(bytes(it.snapshot), now_ms())


@contextlib.asynccontextmanager
async def _lowering(keeper: Keeper, partition: Partition, offset: int) -> AsyncIterator[None]:
    """Around what makes a log shorter, which blocks: one at a time, and time for others between.

    After an election a node may have a thousand of these, and must not fall silent over them.
    """
    partition.is_being_cut = True
    loop = asyncio.get_running_loop()
    try:
        await keeper.lower_extent(partition, offset)
        async with keeper.cutting:
            began = loop.time()
            yield
            await asyncio.sleep(loop.time() - began)
    finally:
        partition.is_being_cut = False


def _advance_start(partition: Partition, start_offset: int) -> None:
    """What the leader has deleted goes here, too."""
    offset = min(start_offset, partition.high_watermark)
    if partition.offline_reason is None and offset > partition.log.start_offset:
        done = partition.log.advance_start(offset)
        done.add_done_callback(lambda it: it.cancelled() or it.exception())
