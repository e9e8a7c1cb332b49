"""What an edge has accepted for a cluster that it can't reach, on its own disk.

Each partition has a queue, a log of batches in the order in which they came. Nothing is answered
before it is synced. How far a queue is delivered only the cluster can tell: whoever delivers
commits it there, in one step with the records. A queue of which everything is delivered goes.

Which queues there are says a journal. Each has a name, drawn when it begins and committed along
with its positions: one that begins anew must not be taken for another whose offsets are known.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from collections.abc import Callable, Iterator

import msgspec

from sapwood.disk import Disk, Journal
from sapwood.log import CorruptLog, HybridClock, Log, LogConfig
from sapwood.wire.batch import BatchHeader, patch_offset, read_header
from sapwood.wire.errors import ErrorCode, KafkaError

log = logging.getLogger("sapwood.edge")

DEFAULT_BYTES = 256 << 20
ASIDE = "aside"
QUEUES = "queues"
DAMAGED = "damaged"
NAME_BYTES = 8
READABLE = 200
"""Of a topic's name, which may be as long as a file's, so many letters are part of a queue's."""
NOTE_S = 1.0
# Small segments: what is delivered goes by the segment, and room is reserved for a whole one.
_CONFIG = LogConfig(segment_bytes=1 << 20, retention_ms=-1, retention_acked=True)
_NO_EPOCH = -1
_END = struct.Struct(">q")

Key = tuple[str, int]
"""Topic and partition."""


class Queue:
    """One partition's batches, oldest first."""

    def __init__(self, key: Key, name: str, stored: Log) -> None:
        self.key = key
        self.name = name
        self.log = stored
        self.position = stored.start_offset
        """Everything before it is delivered."""
        self.is_sure = False
        """Whether the cluster was asked about the position, and nothing is open since."""
        self.is_known = True
        """Whether the journal has it on disk: else nothing of it would be there after a crash."""

    @property
    def records(self) -> int:
        """How many are to be delivered, those that aren't synced yet among them."""
        return self.log.end_offset - self.position

    def read(self, max_bytes: int) -> list[tuple[BatchHeader, memoryview]]:
        """The next batches that are safe; at least one if there is one."""
        found = self.log.read(self.position, max_bytes, self.log.durable_end)
        return [(header, batch) for batch in found for header in [read_header(batch)]]


class Outbox:
    def __init__(
        self,
        disk: Disk,
        directory: str,
        limit_bytes: int,
        now_ms: Callable[[], int],
        entropy: Callable[[int], bytes],
    ) -> None:
        """Opens what is there. JournalCorrupt or OSError if that can't be."""
        self.limit_bytes = limit_bytes
        self.accepted_total = 0
        self.delivered_total = 0
        self.refused_total = 0
        self.aside_total = 0
        self.news = asyncio.Event()
        """Set whenever something is added."""
        self._disk = disk
        self._directory = directory
        self._now_ms = now_ms
        self._entropy = entropy
        self._clock = HybridClock()
        self._loop = asyncio.get_running_loop()
        self._queues: dict[Key, Queue] = {}
        disk.makedirs(directory)
        self.journal = Journal.open(disk, f"{directory}/journal")
        self._aside_bytes = 0
        self._open()
        self._noting = self._loop.call_later(NOTE_S, self._note)

    def __iter__(self) -> Iterator[Queue]:
        return iter(list(self._queues.values()))

    def __bool__(self) -> bool:
        return bool(self._queues)

    @property
    def records(self) -> int:
        return sum(it.records for it in self._queues.values())

    @property
    def size_bytes(self) -> int:
        """On disk, with what was put aside."""
        return self._aside_bytes + sum(it.log.size_bytes for it in self._queues.values())

    def __contains__(self, key: Key) -> bool:
        """Whether something is there that has to be delivered first."""
        return key in self._queues

    def metrics(self) -> dict[str, float]:
        return {
            "sapwood_edge_outbox_records": float(self.records),
            "sapwood_edge_outbox_bytes": float(self.size_bytes),
            "sapwood_edge_outbox_limit_bytes": float(self.limit_bytes),
            "sapwood_edge_outbox_accepted_total": float(self.accepted_total),
            "sapwood_edge_outbox_delivered_total": float(self.delivered_total),
            "sapwood_edge_outbox_refused_total": float(self.refused_total),
            "sapwood_edge_outbox_aside_total": float(self.aside_total),
        }

    # -- in ----------------------------------------------------------------------------------

    def append(self, key: Key, batch: memoryview, header: BatchHeader) -> asyncio.Future[None]:
        """Resolves when it is synced. KafkaError if there is no room, or the disk fails."""
        size_bytes = self.size_bytes
        if size_bytes + header.size > self.limit_bytes:
            self.refused_total += header.record_count
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"This edge can't reach the cluster, and its outbox is full: {size_bytes} of "
                f"{self.limit_bytes} bytes",
            )
        try:
            queue = self._queue(key)
            self._write(queue.log, batch, header)
        except (OSError, CorruptLog) as error:
            self.refused_total += header.record_count
            raise self._unwritable(error) from error
        return asyncio.ensure_future(self._sync(queue, header.record_count))

    async def _sync(self, queue: Queue, record_count: int) -> None:
        try:
            if not queue.is_known:
                await self.journal.flush()
                queue.is_known = True
            await queue.log.sync()
        except Exception as error:
            self.refused_total += record_count
            raise self._unwritable(error) from error
        self.accepted_total += record_count
        self.news.set()

    def _unwritable(self, error: Exception) -> KafkaError:
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"The outbox can't be written: {error}")

    def _queue(self, key: Key) -> Queue:
        queue = self._queues.get(key)
        if queue is not None:
            return queue
        name = f"{key[0][:READABLE]}-{key[1]}~{self._entropy(NAME_BYTES).hex()}"
        queue = Queue(key, name, self._open_log(f"{QUEUES}/{name}", 0))
        queue.is_sure = True  # the cluster has never heard of it
        queue.is_known = False
        self.journal.put(_fact("queue", name), msgspec.json.encode(key))
        self._queues[key] = queue
        return queue

    def _write(self, stored: Log, batch: memoryview, header: BatchHeader) -> None:
        patch_offset(batch, 0, stored.end_offset, _NO_EPOCH)
        now_ms = self._now_ms()
        stored.append(batch, read_header(batch), self._clock.now(now_ms), now_ms)

    # -- out ---------------------------------------------------------------------------------

    def delivered(self, queue: Queue, offset: int) -> None:
        """The cluster has everything before `offset`."""
        self.delivered_total += max(0, offset - queue.position)
        self._pass(queue, offset)

    async def put_aside(
        self, queue: Queue, batches: list[tuple[BatchHeader, memoryview]], reason: str
    ) -> None:
        """Keep what the cluster refuses for good where it holds up nobody."""
        directory = f"{ASIDE}/{queue.key[0]}-{queue.key[1]}"
        stored = self._open_log(directory, 0)
        count = 0
        try:
            before = stored.size_bytes
            for header, batch in batches:
                self._write(stored, memoryview(bytearray(batch)), header)
                count += header.record_count
            self._aside_bytes += stored.size_bytes - before
            await stored.sync()
        finally:
            stored.close()
        self.aside_total += count
        log.error(
            "%d records of topic %s, partition %d, that were answered as accepted can't be "
            "delivered: %s. They are kept in %s/%s: sapwood log dump shows them",
            *(count, *queue.key, reason, self._directory, directory),
        )
        self._pass(queue, batches[-1][0].next_offset)

    def is_done(self, queue: Queue) -> bool:
        """Whether nothing of it is left to deliver. One whose disk failed ends with what was
        synced: the rest was refused."""
        if queue.log.failed is None:
            is_done = not queue.records
        else:
            is_done = queue.position >= queue.log.durable_end
        if is_done:
            self._end(queue)
        return is_done

    def _pass(self, queue: Queue, offset: int) -> None:
        queue.position = max(queue.position, offset)
        if not self.is_done(queue) and queue.log.failed is None:
            queue.log.retain(self._now_ms(), queue.position, queue.position)

    def _end(self, queue: Queue) -> None:
        if self._queues.pop(queue.key, None) is None:
            return
        queue.log.discard()
        self._forget(queue.name)
        with contextlib.suppress(OSError):  # what is left of it goes at the next start
            self._disk.remove(self._path(f"{QUEUES}/{queue.name}"))

    # -- files -------------------------------------------------------------------------------

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def _open_log(self, name: str, durable_end: int) -> Log:
        opened = Log.open(
            self._disk,
            self._path(name),
            _CONFIG,
            durable_end=durable_end,
            clean=False,
            now_ms=self._now_ms(),
        )
        self._clock.observe(opened.last_hlc)
        return opened

    def _open(self) -> None:
        facts = self.journal.items(b"queue/")
        known = {fact.removeprefix(b"queue/").decode(): value for fact, value in facts}
        found = set(self._disk.list(self._path(QUEUES)))
        for name in found - known.keys():
            # Its beginning was never synced, so nothing of it was answered; or it is delivered.
            self._disk.remove(self._path(f"{QUEUES}/{name}"))
        for name in known.keys() - found:
            self._forget(name)
        for name in sorted(known.keys() & found):
            self._open_queue(name, msgspec.json.decode(known[name], type=Key))
        if self._queues:
            log.info("%d records in the outbox are to be delivered", self.records)
        for name in self._disk.list(self._path(ASIDE)):
            stored = self._open_log(f"{ASIDE}/{name}", 0)
            self._aside_bytes += stored.size_bytes
            stored.close()

    def _open_queue(self, name: str, key: Key) -> None:
        noted = self.journal.get(_fact("end", name))
        try:
            stored = self._open_log(f"{QUEUES}/{name}", _END.unpack(noted)[0] if noted else 0)
        except CorruptLog as error:
            self._keep_damaged(name, error)
            return
        self._queues[key] = Queue(key, name, stored)
        # What was found may not have been synced by the process that wrote it.
        stored.sync().add_done_callback(self._found_is_synced)

    def _found_is_synced(self, synced: asyncio.Future[int]) -> None:
        if synced.exception() is None:
            self.news.set()

    def give_up(self, queue: Queue, error: CorruptLog) -> None:
        """It can't be read. What is behind the damage can't be told from what is not."""
        self._queues.pop(queue.key, None)
        queue.log.discard()
        self._keep_damaged(queue.name, error)

    def _keep_damaged(self, name: str, error: CorruptLog) -> None:
        kept = self._path(f"{DAMAGED}/{name}")
        self._disk.makedirs(self._path(DAMAGED))
        self._disk.rename(self._path(f"{QUEUES}/{name}"), kept)
        self._forget(name)
        log.error("a queue of the outbox can't be delivered, and is kept in %s: %s", kept, error)

    def _forget(self, name: str) -> None:
        self.journal.put(_fact("queue", name), None)
        self.journal.put(_fact("end", name), None)

    def _note(self) -> None:
        """How far queues are durable: below that, damage is damage and no torn end."""
        self._noting = self._loop.call_later(NOTE_S, self._note)
        self._note_ends()
        self.journal.flush().add_done_callback(lambda it: it.exception())

    def _note_ends(self) -> None:
        for queue in self._queues.values():
            self.journal.put(_fact("end", queue.name), _END.pack(queue.log.durable_end))

    async def close(self) -> None:
        self._noting.cancel()
        for queue in self._queues.values():
            queue.log.close()
        self._note_ends()
        await self.journal.flush()
        self.journal.close()


def _fact(kind: str, name: str) -> bytes:
    return f"{kind}/{name}".encode()
