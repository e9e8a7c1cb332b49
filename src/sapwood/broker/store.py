"""The metadata log and the image that follows from it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from sapwood.metadata import controller
from sapwood.metadata import records as r
from sapwood.metadata.image import Image
from sapwood.replica import Partition
from sapwood.wire.batch import iterate, read_header
from sapwood.wire.errors import KafkaError
from sapwood.wire.records import decode_batch, encode_batch

TOPIC_ID = (1).to_bytes(16, "big")
"""Kafka's own id for its metadata topic."""
_READ_BYTES = 1 << 20


class MetadataStore:
    """The only way to change the image: append records, wait for their commit, apply them."""

    def __init__(
        self,
        partition: Partition,
        now_ms: Callable[[], int],
        on_applied: Callable[[r.Record], Awaitable[None]],
    ) -> None:
        self.image = Image()
        self._on_applied = on_applied
        self._partition = partition
        self._now_ms = now_ms
        self._writing = asyncio.Lock()

    def load(self) -> None:
        offset = self._partition.log.start_offset
        while offset < self._partition.high_watermark:
            for view in self._partition.read(offset, _READ_BYTES, at_least_one=True):
                for position, header in iterate(view):
                    for record in decode_batch(view, position):
                        self.image.apply(r.decode(record.value or b""))
                    offset = header.next_offset

    @contextlib.asynccontextmanager
    async def changing(self) -> AsyncIterator[Image]:
        """Hold the image still between a decision and the commit of its records."""
        async with self._writing:
            yield self.image

    async def commit(self, records: Sequence[r.Record]) -> None:
        """Within `changing()`: log the records, and apply them once they can't be lost."""
        if not records:
            return
        now_ms = self._now_ms()
        values = r.encode_all(records)
        batch = memoryview(encode_batch([(now_ms, None, value, ()) for value in values]))
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: KafkaError | None) -> None:
            if error is None:
                for record in records:
                    self.image.apply(record)
            if committed.cancelled():
                return
            if error is None:
                committed.set_result(None)
            else:
                committed.set_exception(error)

        self._partition.append(batch, read_header(batch), now_ms, -1, done)
        await committed
        for record in records:
            await self._on_applied(record)


class ProducerIds:
    """Ids given out of reserved blocks: one record in the metadata log serves a thousand."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._next = 0
        self._end = 0

    async def take(self) -> int:
        while self._next == self._end:
            async with self._store.changing() as image:
                if self._next == self._end:  # nobody reserved while we waited
                    first = image.next_producer_id
                    record = controller.reserve_producer_ids(image)
                    await self._store.commit([record])
                    self._next, self._end = first, record.next_id
        taken = self._next
        self._next += 1
        return taken
