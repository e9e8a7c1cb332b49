"""The partitions that this node holds: opened, looked up, kept up, closed, removed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from sapwood.disk import Disk, Journal
from sapwood.log import CorruptLog, HybridClock, Log, LogConfig, SegmentCache
from sapwood.replica.acceptance import Rules
from sapwood.replica.partition import Partition
from sapwood.wire.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

UPKEEP_INTERVAL_S = 1.0
_UPKEEP_AT_ONCE = 100
"""Partitions between two turns for others: a node may have thousands."""
_CLEAN_STOP = b"clean-stop"
_END = struct.Struct(">q")


@dataclass(slots=True, frozen=True)
class Settings:
    """What a topic's configs mean for its partitions on this node."""

    log: LogConfig
    rules: Rules


def directory_name(topic: str, topic_id: bytes, index: int) -> str:
    """The id decides, the name is for people. Cut, since a file name has 255 bytes at most."""
    return f"{topic[:180]}-{index}.{topic_id.hex()}"


def topic_id_of(directory: str) -> bytes | None:
    with contextlib.suppress(ValueError):
        topic_id = bytes.fromhex(directory.rpartition(".")[2])
        return topic_id if len(topic_id) == 16 else None
    return None


def _log_failure(removal: asyncio.Future[None]) -> None:
    if not removal.cancelled() and (error := removal.exception()) is not None:
        logger.warning("files of a deleted topic stay until the next start: %s", error)


@dataclass(slots=True, frozen=True)
class _Unopened:
    """A partition whose log could not be opened, and why."""

    topic: str
    settings: Settings
    reason: str
    may_be_retried: bool
    """A full disk or too many open files pass; damage doesn't."""


class Replicas:
    """Opening may cost time; looking up is one dictionary access."""

    def __init__(self, disk: Disk, data_dir: str, now_ms: Callable[[], int]) -> None:
        self._disk = disk
        self._directory = f"{data_dir}/logs"
        disk.makedirs(self._directory)
        self._journal = Journal.open(disk, f"{data_dir}/journal")
        self._now_ms = now_ms
        self._clock = HybridClock()
        self._cache = SegmentCache()
        self._clean = self._journal.get(_CLEAN_STOP) is not None
        self._partitions: dict[bytes, dict[int, Partition]] = {}
        """By topic id: a topic that is made again under its old name is another one."""
        self._ends: dict[Partition, tuple[bytes, int]] = {}
        """Each partition's key in the journal and the durable end that was last noted there."""
        self._unopened: dict[tuple[bytes, int], _Unopened] = {}
        self._removals: set[asyncio.Task[None]] = set()
        self._compaction: asyncio.Task[None] | None = None
        self._compacting: Partition | None = None
        self.offline_total = 0

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self._partitions.values():
            yield from partitions.values()

    def get(self, topic_id: bytes, index: int) -> Partition:
        partition = self._partitions.get(topic_id, {}).get(index)
        if partition is not None:
            return partition
        unopened = self._unopened.get((topic_id, index))
        if unopened is not None:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"Partition {unopened.topic}-{index} is offline: {unopened.reason}",
            )
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {index}")

    def offline(self) -> list[tuple[str, int, str]]:
        """Topic, partition and reason of all that can't be served."""
        failed = [(p.topic, p.index, p.offline_reason) for p in self if p.offline_reason]
        return failed + [(it.topic, index, it.reason) for (_, index), it in self._unopened.items()]

    async def begin(self) -> None:
        """From here on a crash is an unclean stop."""
        self._journal.put(_CLEAN_STOP, None)
        await self._journal.flush()

    def open(self, topic: str, topic_id: bytes, index: int, settings: Settings) -> Partition | None:
        """Recover or create a partition; None if its log can't be trusted: then it is offline."""
        partition = self._recover(topic, topic_id, index, settings)
        if partition is not None:
            self._partitions.setdefault(topic_id, {})[index] = partition
        return partition

    def _recover(
        self, topic: str, topic_id: bytes, index: int, settings: Settings
    ) -> Partition | None:
        name = directory_name(topic, topic_id, index)
        key = b"end/" + name.rpartition(".")[2].encode() + b"/" + str(index).encode()
        noted = self._journal.get(key)
        durable_end = _END.unpack(noted)[0] if noted else 0
        try:
            log = Log.open(
                self._disk,
                f"{self._directory}/{name}",
                settings.log,
                durable_end=durable_end,
                clean=self._clean,
                now_ms=self._now_ms(),
                cache=self._cache,
            )
        except (CorruptLog, OSError) as error:
            if (topic_id, index) not in self._unopened:
                self.offline_total += 1
                logger.error("partition %s-%d is offline: %s", topic, index, error)
            self._unopened[topic_id, index] = _Unopened(
                topic, settings, str(error), isinstance(error, OSError)
            )
            return None
        self._clock.observe(log.last_hlc)
        partition = Partition(
            topic,
            topic_id,
            index,
            log,
            settings.rules,
            hybrid_now=self._hybrid_now,
            on_offline=self._went_offline,
            on_grown=self._grew,
        )
        self._ends[partition] = (key, durable_end)
        return partition

    def configure(self, topic_id: bytes, settings: Settings) -> None:
        for partition in self._partitions.get(topic_id, {}).values():
            partition.log.config = settings.log
            partition.rules = settings.rules
        for id_and_index, unopened in self._unopened.items():
            if id_and_index[0] == topic_id:
                self._unopened[id_and_index] = replace(unopened, settings=settings)

    async def settle(self) -> None:
        """Sync what recovery found past the last sync: only then may readers see it.

        After a kill the tail lives in the page cache alone; a reader that saw it and then a
        power cut would have seen records that never were.
        """
        behind = [p for p in self if p.log.durable_end < p.log.end_offset]
        results = await asyncio.gather(*(p.log.sync() for p in behind), return_exceptions=True)
        for partition, result in zip(behind, results, strict=True):
            if isinstance(result, BaseException):
                partition.take_offline(f"a sync to disk failed: {result}")

    def remove(self, topic_id: bytes) -> None:
        """Drop a deleted topic's partitions at once, and their files soon."""
        gone = list(self._partitions.pop(topic_id, {}).values())
        for partition in gone:
            key, _ = self._ends.pop(partition)
            self._journal.put(key, None)
            partition.delete()
        directories = [partition.log.directory for partition in gone]
        for id_and_index, unopened in list(self._unopened.items()):
            if id_and_index[0] == topic_id:
                del self._unopened[id_and_index]
                name = directory_name(unopened.topic, *id_and_index)
                directories.append(f"{self._directory}/{name}")
        removal = asyncio.create_task(self._let_go(gone, directories))
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

    def remove_files(self, topic_ids: set[bytes]) -> None:
        """Only ever of topics that the metadata log says were deleted."""
        for name in self._disk.list(self._directory):
            if topic_id_of(name) in topic_ids:
                self._remove_directory(f"{self._directory}/{name}")

    def _remove_directory(self, path: str) -> None:
        # Off the loop: to free a large file takes a file system its time.
        self._disk.offload(partial(self._disk.remove, path)).add_done_callback(_log_failure)

    async def upkeep(self) -> None:
        """Note durable ends, delete what retention allows, compact; about once a second."""
        now_ms = self._now_ms()
        for number, partition in enumerate(list(self)):
            if number % _UPKEEP_AT_ONCE == 0:
                await asyncio.sleep(0)
            if partition.offline_reason is not None:
                continue
            if partition.log.failed is not None:
                # A sync that nobody waited for: one of a segment that was closed, or of a topic
                # that acknowledges before it syncs.
                partition.take_offline(str(partition.log.failed))
                continue
            self._note_end(partition)
            try:
                partition.log.roll_if_due(now_ms)
                partition.log.retain(now_ms, partition.high_watermark)
            except OSError as error:
                logger.warning(
                    "retention of %s failed and will be tried again: %s", partition, error
                )
            except CorruptLog as error:
                partition.take_offline(str(error))
        await self._retry_unopened()
        await self._journal.flush()
        if self._compaction is None or self._compaction.done():
            self._compaction = asyncio.create_task(self._compact())

    async def _compact(self) -> None:
        """One log after the other, since each may keep a helper process busy for long."""
        for partition in list(self):
            log = partition.log
            if partition.offline_reason is not None or "compact" not in log.config.cleanup_policy:
                continue
            self._compacting = partition
            try:
                await log.compact(self._now_ms(), partition.high_watermark)
            except CorruptLog as error:
                partition.take_offline(str(error))
            except OSError as error:
                logger.warning("compaction of %s failed: %s", partition, error)
            finally:
                self._compacting = None

    async def _end_compaction(self) -> None:
        """It leaves a log as it was; the next upkeep begins again."""
        if self._compaction is not None:
            self._compaction.cancel()
            await asyncio.wait([self._compaction])

    async def _retry_unopened(self) -> None:
        """Open what could not be opened for want of room or of descriptors."""
        for (topic_id, index), it in list(self._unopened.items()):
            if not it.may_be_retried:
                continue
            partition = self._recover(it.topic, topic_id, index, it.settings)
            if partition is None:
                continue
            try:
                await partition.log.sync()  # as in `settle`: only then may readers see it
            except OSError as error:
                partition.take_offline(f"a sync to disk failed: {error}")
            if self._unopened.pop((topic_id, index), None) is None:
                self._ends.pop(partition)
                partition.delete()  # its topic was, meanwhile
                partition.log.discard()
                self._remove_directory(partition.log.directory)
                continue
            self._partitions.setdefault(topic_id, {})[index] = partition
            logger.info("partition %s could be opened after all", partition)

    async def close(self) -> None:
        """A clean stop: all synced, all ends noted, so that the next start needs no scan."""
        for removal in self._removals:
            removal.cancel()  # the next start removes the rest
        await self._end_compaction()
        is_clean = True
        await asyncio.gather(*(p.log.sync() for p in self), return_exceptions=True)
        for partition in list(self):
            try:
                partition.check_online()
                partition.log.close()
            except (KafkaError, OSError) as error:
                # Its log was not closed, so the next start must not take it for whole.
                is_clean = False
                logger.error("%s was not closed: %s", partition, error)
                continue
            self._note_end(partition)
        if is_clean:
            self._journal.put(_CLEAN_STOP, b"1")
        await self._journal.flush()

    def _note_end(self, partition: Partition) -> None:
        key, noted = self._ends[partition]
        end = partition.log.durable_end
        if end != noted:
            self._journal.put(key, _END.pack(end))
            self._ends[partition] = (key, end)

    def _grew(self, partition: Partition) -> None:
        """Not only every second: in one a fast disk takes more than a restart should read."""
        if partition not in self._ends:
            return  # deleted
        self._note_end(partition)
        # Upkeep flushes again, and reports what is wrong with the journal.
        self._journal.flush().add_done_callback(lambda done: done.cancelled() or done.exception())

    def _hybrid_now(self) -> int:
        return self._clock.now(self._now_ms())

    def _went_offline(self, partition: Partition) -> None:
        self.offline_total += 1
        logger.error("partition %s is offline: %s", partition, partition.offline_reason)
