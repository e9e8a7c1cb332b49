"""The partitions that this node holds: opened, looked up, kept up, closed, removed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from sapwood.disk import Disk, Journal
from sapwood.log import CorruptLog, HybridClock, Log, LogConfig, SegmentCache
from sapwood.replica.acceptance import Rules
from sapwood.replica.partition import Partition
from sapwood.wire.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

UPKEEP_INTERVAL_S = 1.0
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
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._ends: dict[Partition, tuple[bytes, int]] = {}
        """Each partition's key in the journal and the durable end that was last noted there."""
        self._unopened: dict[tuple[str, int], tuple[str, bytes]] = {}
        self.offline_total = 0

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._partitions.values())

    def get(self, topic: str, index: int) -> Partition:
        partition = self._partitions.get((topic, index))
        if partition is not None:
            return partition
        if (topic, index) in self._unopened:
            reason, _ = self._unopened[topic, index]
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"Partition {topic}-{index} is offline: {reason}"
            )
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {topic}-{index}"
        )

    def offline(self) -> list[tuple[str, int, str]]:
        """Topic, partition and reason of all that can't be served."""
        failed = [(p.topic, p.index, p.offline_reason) for p in self if p.offline_reason]
        return failed + [(*name, reason) for name, (reason, _) in self._unopened.items()]

    async def begin(self) -> None:
        """From here on a crash is an unclean stop."""
        self._journal.put(_CLEAN_STOP, None)
        await self._journal.flush()

    def open(self, topic: str, topic_id: bytes, index: int, settings: Settings) -> Partition | None:
        """Recover or create a partition; None if its log can't be trusted: then it is offline."""
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
            self._unopened[topic, index] = (str(error), topic_id)
            self.offline_total += 1
            logger.error("partition %s-%d is offline: %s", topic, index, error)
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
        )
        self._partitions[topic, index] = partition
        self._ends[partition] = (key, durable_end)
        return partition

    def configure(self, topic: str, settings: Settings) -> None:
        for partition in self:
            if partition.topic == topic:
                partition.log.config = settings.log
                partition.rules = settings.rules

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
        """Drop a deleted topic's partitions and their files."""
        for name, partition in list(self._partitions.items()):
            if partition.topic_id == topic_id:
                del self._partitions[name]
                key, _ = self._ends.pop(partition)
                self._journal.put(key, None)
                partition.take_offline("the topic was deleted")
                partition.log.close()
        for name, (_, unopened_id) in list(self._unopened.items()):
            if unopened_id == topic_id:
                del self._unopened[name]
        self.remove_files({topic_id})

    def remove_files(self, topic_ids: set[bytes]) -> None:
        """Only ever of topics that the metadata log says were deleted."""
        for name in self._disk.list(self._directory):
            if topic_id_of(name) in topic_ids:
                path = f"{self._directory}/{name}"
                # Off the loop: to free a large file takes a file system its time.
                self._disk.offload(partial(self._disk.remove, path)).add_done_callback(_log_failure)

    async def upkeep(self) -> None:
        """Note durable ends, delete what retention allows, compact; about once a second."""
        now_ms = self._now_ms()
        for partition in list(self):
            if partition.offline_reason is not None:
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
        await self._journal.flush()

    async def close(self) -> None:
        """A clean stop: all synced, all ends noted, so that the next start needs no scan."""
        for partition in list(self):
            if partition.offline_reason is None:
                try:
                    await partition.log.sync()
                except OSError as error:
                    partition.take_offline(f"a sync to disk failed: {error}")
                    continue
                partition.log.close()
                self._note_end(partition)
        self._journal.put(_CLEAN_STOP, b"1")
        await self._journal.flush()

    def _note_end(self, partition: Partition) -> None:
        key, noted = self._ends[partition]
        end = partition.log.durable_end
        if end != noted:
            self._journal.put(key, _END.pack(end))
            self._ends[partition] = (key, end)

    def _hybrid_now(self) -> int:
        return self._clock.now(self._now_ms())

    def _went_offline(self, partition: Partition) -> None:
        if (partition.topic, partition.index) in self._partitions:
            self.offline_total += 1
            logger.error("partition %s is offline: %s", partition, partition.offline_reason)
