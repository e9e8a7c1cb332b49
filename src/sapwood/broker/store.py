"""The metadata log and the image that follows from it, on every node."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import msgspec
from crc32c import crc32c

from sapwood.metadata import records as r
from sapwood.metadata.image import Image
from sapwood.replica import Disk, Partition, replace_file
from sapwood.wire.batch import iterate, read_header
from sapwood.wire.errors import ErrorCode, KafkaError
from sapwood.wire.records import decode_batch, encode_batch

logger = logging.getLogger(__name__)

TOPIC_ID = (1).to_bytes(16, "big")
"""Kafka's own id for its metadata topic."""
SNAPSHOT_RECORDS = 10_000
"""After so many the image itself is written down, and the log before it can go."""
EVERYBODY_S = 2.0
"""How long a change waits for nodes that are alive but slow to learn of it."""
_READ_BYTES = 1 << 20
_HEADER = struct.Struct(">4sHHIq")  # magic, version, reserved, crc32c of what follows, offset
_MAGIC = b"SAPM"
_VERSION = 1
_CRC_END = 12


class BadSnapshot(Exception):
    """The stored image can't be read."""


class MetadataStore:
    """The only way to change the image: append records, wait for their commit, apply them.

    Any node applies what is committed; only the active controller, the log's leader, appends.
    """

    def __init__(
        self,
        partition: Partition,
        disk: Disk,
        snapshot_path: str,
        now_ms: Callable[[], int],
        on_applied: Callable[[r.Record], Awaitable[None]],
    ) -> None:
        self.image = Image()
        self.applied = 0
        """Everything below this offset is in the image."""
        self._disk = disk
        self._snapshot_path = snapshot_path
        # Another file, so that a snapshot of our own that is being written can't undo it.
        self._received_path = f"{snapshot_path}.received"
        self._snapshot_offset = 0
        self._now_ms = now_ms
        self._on_applied = on_applied
        self._writing = asyncio.Lock()
        self._unsettled: deque[tuple[int, r.Record]] = deque()
        self._settled = 0
        self._settling: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._snapshotting: asyncio.Future[None] | None = None
        self.follow(partition)

    def follow(self, partition: Partition) -> None:
        """From now on the log is this one: what it was may have been set aside."""
        self._partition = partition
        partition.hurries = partition.is_for_all = True
        partition.state_of = self
        partition.on_replica_progress = self._news.set
        partition.listen(self)

    @property
    def partition(self) -> Partition:
        return self._partition

    @property
    def is_controller(self) -> bool:
        """Whether this node may decide: it leads, and knows everything that was decided."""
        if not self._partition.is_confirmed or self.applied < self._partition.high_watermark:
            return False
        with contextlib.suppress(KafkaError):
            self._partition.check_leads()
            return True
        return False

    @property
    def controller_id(self) -> int:
        """The node that is, or was last known to be, the active controller; -1 if unknown."""
        return self._partition.group.leader

    def open(self) -> None:
        """Read what is known to be committed. BadSnapshot if what was written down is damaged."""
        for path in (self._snapshot_path, self._received_path):
            if self._disk.exists(path):
                file = self._disk.open(path, write=False)
                try:
                    self.load(file.pread(file.size, 0))
                finally:
                    file.close()
        self._snapshot_offset = self.applied
        self._apply_committed()

    def set_aside(self) -> None:
        """Keep damaged snapshots under another name; those of others will take their place."""
        for path in (self._snapshot_path, self._received_path):
            if self._disk.exists(path):
                self._disk.rename(path, f"{path}.damaged-{self._now_ms()}")

    # -- applying ----------------------------------------------------------------------------

    def committed(self, partition: Partition, size_bytes: int) -> None:
        try:
            self._apply_committed()
        except KafkaError as error:
            logger.error("the metadata can't be read: %s", error)
        self._news.set()

    def _apply_committed(self) -> None:
        partition = self._partition
        if self.applied < partition.log.start_offset:
            return  # it was cut off from the log: a snapshot is about to come
        while self.applied < partition.high_watermark:
            views = partition.read(self.applied, _READ_BYTES, at_least_one=True)
            if not views:
                return
            for view in views:
                for position, header in iterate(view):
                    if not header.is_control:
                        for record in decode_batch(view, position):
                            if record.offset >= self.applied:
                                self._apply(record.offset, r.decode(record.value or b""))
                    self.applied = max(self.applied, header.next_offset)
        self._settle()
        if self.applied - self._snapshot_offset >= SNAPSHOT_RECORDS:
            self._write_snapshot()

    def _apply(self, offset: int, record: r.Record) -> None:
        self.image.apply(record)
        self._unsettled.append((offset, record))

    def _settle(self) -> None:
        if not self._unsettled:
            self._settled = self.applied
        elif self._settling is None:
            self._settling = asyncio.ensure_future(self._settle_all())

    async def _settle_all(self) -> None:
        """What each record means for this node, one after the other."""
        try:
            while self._unsettled:
                offset, record = self._unsettled.popleft()
                try:
                    await self._on_applied(record)
                except Exception:
                    # The image is right; what failed here is this node's own following of it.
                    logger.exception("%s could not be followed", type(record).__name__)
                self._settled = offset + 1
                self._news.set()
        finally:
            self._settling = None
        self._settled = self.applied
        self._news.set()

    async def settled(self) -> None:
        """Until this node has followed everything that is in the image."""
        while self._settled < self.applied:
            await self._wait()

    async def _wait(self) -> None:
        self._news.clear()
        await self._news.wait()

    # -- changing ----------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def changing(self) -> AsyncIterator[Image]:
        """Hold the image still between a decision and the commit of its records."""
        async with self._writing:
            yield self.image

    async def commit(
        self, records: Sequence[r.Record], *, everybody_s: float = EVERYBODY_S
    ) -> None:
        """Within `changing()`: log the records; returns when every living node has them.

        So whoever asks any node afterwards sees them; unless one is slower than that.
        """
        if not records:
            return
        if not self.is_controller:
            raise KafkaError(
                ErrorCode.NOT_CONTROLLER,
                "This node is not the active controller, or too few nodes are alive to have one",
            )
        now_ms = self._now_ms()
        values = r.encode_all(records)
        batch = memoryview(encode_batch([(now_ms, None, value, ()) for value in values]))
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: KafkaError | None) -> None:
            if committed.cancelled():
                return
            if error is None:
                committed.set_result(None)
            else:
                committed.set_exception(error)

        try:
            appended = self._partition.append(batch, read_header(batch), now_ms, -1, done)
            await committed
        except KafkaError as error:
            if error.code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
                raise
            raise KafkaError(ErrorCode.NOT_CONTROLLER, str(error)) from error
        end = appended.base_offset + len(records)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(everybody_s):
                while self._settled < end or not self._is_known_to_all(end):
                    await self._wait()

    def _is_known_to_all(self, offset: int) -> bool:
        now = asyncio.get_running_loop().time()
        return all(it >= offset for it in self._partition.known_to_followers(now))

    # -- snapshots ---------------------------------------------------------------------------

    def save(self) -> bytes:
        body = msgspec.msgpack.encode(r.encode_all(list(self.image.records())))
        checked = struct.pack(">q", self.applied) + body
        return struct.pack(">4sHHI", _MAGIC, _VERSION, 0, crc32c(checked)) + checked

    def keep(self, state: bytes) -> None:
        replace_file(self._disk, self._received_path, [state])

    def load(self, state: bytes) -> None:
        """Replace the image by the one that `save` gave, here or at another node."""
        if len(state) < _HEADER.size:
            raise BadSnapshot("the stored metadata are cut short")
        magic, version, _, crc, offset = _HEADER.unpack_from(state)
        if magic != _MAGIC or version != _VERSION or crc32c(state[_CRC_END:]) != crc:
            raise BadSnapshot("the stored metadata are damaged or of an unknown version")
        if offset <= self.applied:
            return
        image = Image()
        for data in msgspec.msgpack.decode(state[_HEADER.size :], type=list[bytes]):
            record = r.decode(data)
            image.apply(record)
            self._unsettled.append((offset - 1, record))
        gone = self.image.topics_by_id.keys() - image.topics_by_id.keys()
        image.deleted_topics |= gone
        self._unsettled.extend((offset - 1, r.TopicDeleted(topic_id=it)) for it in sorted(gone))
        # What has its defaults again isn't in a snapshot either.
        for kind, name in sorted(self.image.configs.keys() - image.configs.keys()):
            reset = r.ConfigChanged(resource_type=kind, resource_name=name, values={})
            self._unsettled.append((offset - 1, reset))
        self.image = image
        self.applied = offset
        self._settle()

    def _write_snapshot(self) -> None:
        if self._snapshotting is not None:
            return
        offset, data = self.applied, self.save()
        self._snapshot_offset = offset

        def written(done: asyncio.Future[None]) -> None:
            self._snapshotting = None
            if done.cancelled():
                return
            if (error := done.exception()) is not None:
                logger.warning("the metadata were not written down: %s", error)
                self._snapshot_offset = 0
                return
            trimmed = asyncio.ensure_future(self._partition.advance_start(offset))
            trimmed.add_done_callback(lambda it: it.cancelled() or it.exception())

        self._snapshotting = self._disk.offload(
            lambda: replace_file(self._disk, self._snapshot_path, [data])
        )
        self._snapshotting.add_done_callback(written)
