"""The outbox on real files: what it holds, what survives, and what is refused."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sapwood.disk import File, OsDisk
from sapwood.edge.outbox import ASIDE, DAMAGED, QUEUES, Outbox, Queue
from sapwood.log import CorruptLog
from sapwood.wire.batch import crc_ok, read_header
from sapwood.wire.errors import ErrorCode, KafkaError
from sapwood.wire.records import decode_batch, encode_batch
from tests.broker.asking import on_a_loop
from tests.helpers import eventually_on_loop

KEY = ("orders", 3)
LIMIT_BYTES = 1 << 20


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def opened(directory: Path, limit_bytes: int = LIMIT_BYTES) -> Outbox:
    return Outbox(OsDisk(), str(directory), limit_bytes, now_ms, os.urandom)


@asynccontextmanager
async def outboxes(directory: Path, limit_bytes: int = LIMIT_BYTES) -> AsyncIterator[Outbox]:
    outbox = opened(directory, limit_bytes)
    try:
        yield outbox
    finally:
        await outbox.close()


async def put(outbox: Outbox, *values: bytes, key: tuple[str, int] = KEY) -> None:
    batch = encode_batch([(7, b"k", value, (("h", b"v"),)) for value in values])
    await outbox.append(key, memoryview(batch), read_header(batch))


def queue_of(outbox: Outbox, key: tuple[str, int] = KEY) -> Queue:
    return next(it for it in outbox if it.key == key)


def values(queue: Queue) -> list[bytes | None]:
    return [it.value for _, batch in queue.read(1 << 20) for it in decode_batch(batch)]


@on_a_loop
async def test_batches_come_out_as_they_came_in_and_in_that_order(tmp_path: Path) -> None:
    async with outboxes(tmp_path) as outbox:
        await put(outbox, b"1", b"2")
        await put(outbox, b"3")
        await put(outbox, b"other", key=("orders", 4))
        queue = queue_of(outbox)
        assert values(queue) == [b"1", b"2", b"3"]
        assert (outbox.records, queue.records) == (4, 3)
        (header, batch), *_ = queue.read(1)
        assert crc_ok(batch, 0, header)
        record, *_ = decode_batch(batch)
        assert (record.timestamp, record.key, record.headers) == (7, b"k", (("h", b"v"),))


@on_a_loop
async def test_what_is_delivered_goes_and_an_empty_queue_leaves_nothing(tmp_path: Path) -> None:
    async with outboxes(tmp_path) as outbox:
        await put(outbox, b"1")
        await put(outbox, b"2")
        queue = queue_of(outbox)
        outbox.delivered(queue, 1)
        assert KEY in outbox
        assert values(queue) == [b"2"]
        outbox.delivered(queue, 2)
        assert KEY not in outbox
        assert not outbox
        assert os.listdir(tmp_path / QUEUES) == []
        assert outbox.delivered_total == 2


@on_a_loop
async def test_what_was_accepted_is_there_after_a_kill(tmp_path: Path) -> None:
    before = opened(tmp_path)
    await put(before, b"1")
    await put(before, b"2")
    name = queue_of(before).name
    # As if it was killed: nothing is closed, nothing more is noted.
    async with outboxes(tmp_path) as outbox:
        queue = queue_of(outbox)
        assert (queue.name, queue.is_sure) == (name, False)
        await eventually_on_loop(outbox.news.is_set)
        assert values(queue) == [b"1", b"2"]
        await put(outbox, b"3")
        assert values(queue) == [b"1", b"2", b"3"]
    await before.close()


class HeldJournal(OsDisk):
    """A disk that keeps the syncs of the journal back."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[asyncio.Future[None]] = []
        self.is_open = False

    def sync(self, file: File) -> asyncio.Future[None]:
        if self.is_open or not file.path.endswith("/journal"):
            return super().sync(file)
        self.held.append(asyncio.get_running_loop().create_future())
        return self.held[-1]

    def release(self) -> None:
        self.is_open = True
        for each in self.held:
            each.set_result(None)


@on_a_loop
async def test_nothing_of_a_queue_is_accepted_before_the_journal_has_the_queue(
    tmp_path: Path,
) -> None:
    disk = HeldJournal()
    outbox = Outbox(disk, str(tmp_path), LIMIT_BYTES, now_ms, os.urandom)
    first = asyncio.ensure_future(put(outbox, b"1"))
    await eventually_on_loop(lambda: bool(disk.held))
    second = asyncio.ensure_future(put(outbox, b"2"))
    await eventually_on_loop(lambda: outbox.records == 2)
    await queue_of(outbox).log.sync()
    for _ in range(20):  # whoever waited for no more than that has its turn
        await asyncio.sleep(0)
    assert not first.done()
    assert not second.done()
    disk.release()
    await asyncio.gather(first, second)
    await outbox.close()


@on_a_loop
async def test_a_queue_that_begins_anew_has_another_name(tmp_path: Path) -> None:
    async with outboxes(tmp_path) as outbox:
        await put(outbox, b"1")
        first = queue_of(outbox)
        outbox.delivered(first, 1)
        await put(outbox, b"2")
        assert queue_of(outbox).name != first.name


@on_a_loop
async def test_a_full_outbox_refuses_and_says_so(tmp_path: Path) -> None:
    async with outboxes(tmp_path) as outbox:
        big = os.urandom(400_000)
        await put(outbox, big)
        await put(outbox, big, key=("orders", 4))
        with pytest.raises(KafkaError, match="outbox is full") as refusal:
            await put(outbox, big)
        assert refusal.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert (outbox.refused_total, outbox.accepted_total) == (1, 2)
        outbox.delivered(queue_of(outbox), 1)
        await put(outbox, big)


@on_a_loop
async def test_what_is_put_aside_holds_up_nobody_and_is_kept(tmp_path: Path) -> None:
    async with outboxes(tmp_path) as outbox:
        await put(outbox, b"1")
        await put(outbox, b"2")
        queue = queue_of(outbox)
        await outbox.put_aside(queue, queue.read(1), "because")
        assert values(queue) == [b"2"]
        assert outbox.aside_total == 1
        size_bytes = outbox.size_bytes
    assert os.listdir(tmp_path / ASIDE) == ["orders-3"]
    async with outboxes(tmp_path) as outbox:
        assert outbox.size_bytes == size_bytes, "it counts, until somebody takes it away"


@on_a_loop
async def test_a_damaged_queue_is_kept_and_another_one_begins(tmp_path: Path) -> None:
    async with outboxes(tmp_path) as outbox:
        await put(outbox, b"1" * 100)
        await put(outbox, b"2" * 100)
        name = queue_of(outbox).name
    (segment,) = (tmp_path / QUEUES / name).glob("*.log")
    data = bytearray(segment.read_bytes())
    data[150] ^= 1
    segment.write_bytes(data)
    async with outboxes(tmp_path) as outbox:
        for queue in outbox:  # if it wasn't noticed before, it is now
            with pytest.raises(CorruptLog) as damage:
                queue.read(1)
            outbox.give_up(queue, damage.value)
        assert not outbox
        await put(outbox, b"3")
        assert values(queue_of(outbox)) == [b"3"]
    assert os.listdir(tmp_path / DAMAGED) == [name]


@on_a_loop
async def test_what_nobody_was_told_of_is_no_queue(tmp_path: Path) -> None:
    (tmp_path / QUEUES / "orders-3~0011").mkdir(parents=True)
    async with outboxes(tmp_path) as outbox:
        assert not outbox
    assert os.listdir(tmp_path / QUEUES) == []


@on_a_loop
async def test_one_after_the_other_may_wait_for_the_same_sync(tmp_path: Path) -> None:
    async with outboxes(tmp_path) as outbox:
        batches = [encode_batch([(0, None, b"%d" % number, ())]) for number in range(50)]
        accepted = [outbox.append(KEY, memoryview(it), read_header(it)) for it in batches]
        await asyncio.gather(*accepted)
        assert values(queue_of(outbox)) == [b"%d" % number for number in range(50)]
