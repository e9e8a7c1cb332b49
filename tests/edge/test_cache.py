"""The cache against a plain list of everything that was ever in it."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from sapwood.edge.cache import CHUNK_OVERHEAD_BYTES, Cache, CachedPartition
from sapwood.wire.batch import iterate
from sapwood.wire.codec import Struct
from sapwood.wire.control import TransactionMarker, encode_transaction_marker
from sapwood.wire.records import encode_batch

KEY = (bytes(15) + b"\1", 0)


@dataclass(frozen=True)
class Batch:
    base_offset: int
    next_offset: int
    data: bytes


def batch(offset: int, count: int = 1, producer_id: int = -1, *, transactional: bool) -> Batch:
    data = encode_batch(
        [(0, None, b"value", ())] * count,
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0,
        transactional=transactional,
    )
    return Batch(offset, offset + count, bytes(data))


def marker(offset: int, producer_id: int, *, committed: bool) -> Batch:
    key, value = encode_transaction_marker(TransactionMarker(committed, 0))
    data = encode_batch(
        [(0, key, value, ())],
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0,
        transactional=True,
        control=True,
    )
    return Batch(offset, offset + 1, bytes(data))


def known(partition: CachedPartition, end: int, stable: int | None = None) -> None:
    partition.learn(
        Struct(
            high_watermark=end,
            last_stable_offset=end if stable is None else stable,
            log_start_offset=0,
        )
    )


def offsets(views: list[memoryview]) -> list[int]:
    return [header.base_offset for view in views for _, header in iterate(view)]


@given(
    st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), max_size=6),
    st.integers(0, 3),
    st.data(),
)
def test_a_read_gives_whole_batches_in_order_from_the_one_that_holds_the_offset(
    answers: list[list[int]], gap: int, data: st.DataObject
) -> None:
    cache = Cache()
    partition = cache.begin(KEY, 10, 0.0)
    everything: list[Batch] = []
    offset = 10
    for answer in answers:
        batches = []
        for count in answer:
            batches.append(batch(offset, count, transactional=False))
            offset += count + gap  # compaction leaves gaps
        cache.extend(partition, memoryview(b"".join(it.data for it in batches)))
        everything += batches
    end = everything[-1].next_offset if everything else 10
    limit = data.draw(st.integers(10, end + 2))
    known(partition, limit)
    wanted = data.draw(st.integers(10, end + 2))
    max_bytes = data.draw(st.integers(0, 600))
    expected: list[int] = []
    size = 0
    for it in everything:
        if it.next_offset <= wanted:
            continue
        if it.next_offset > limit:
            break
        size += len(it.data)
        if size > max_bytes and expected:
            break
        expected.append(it.base_offset)
    found = offsets(partition.read(wanted, max_bytes, at_least_one=True, stable=False))
    assert found == expected


def test_what_was_had_already_is_left_out() -> None:
    cache = Cache()
    partition = cache.begin(KEY, 5, 0.0)
    first = batch(5, 2, transactional=False)
    second = batch(7, 3, transactional=False)
    cache.extend(partition, memoryview(first.data))
    cache.extend(partition, memoryview(first.data + second.data))
    known(partition, 10)
    assert offsets(partition.read(5, 10_000, at_least_one=True, stable=False)) == [5, 7]
    assert offsets(partition.read(7, 10_000, at_least_one=True, stable=False)) == [7]


def test_the_oldest_goes_first_when_there_is_too_much() -> None:
    first = batch(0, 1, transactional=False)
    room = 3 * (len(first.data) + CHUNK_OVERHEAD_BYTES)
    cache = Cache(room)
    one, other = cache.begin(KEY, 0, 0.0), cache.begin((KEY[0], 1), 0, 0.0)
    for offset in range(4):
        for partition in (one, other):
            cache.extend(partition, memoryview(batch(offset, 1, transactional=False).data))
    assert cache.size_bytes <= room
    assert (one.start_offset, other.start_offset) == (3, 2)
    assert not one.holds(2)
    assert one.holds(3)
    cache.drop(other)
    assert cache.size_bytes == len(first.data) + CHUNK_OVERHEAD_BYTES


def test_readers_of_committed_records_stop_at_the_last_stable_offset_and_hear_of_aborts() -> None:
    cache = Cache()
    partition = cache.begin(KEY, 0, 0.0)
    history = [
        batch(0, 2, 1, transactional=True),
        batch(2, 1, 2, transactional=True),
        marker(3, 1, committed=False),
        batch(4, 1, 1, transactional=True),
        marker(5, 1, committed=True),
    ]
    cache.extend(partition, memoryview(b"".join(it.data for it in history)))
    known(partition, 6, stable=2)
    assert offsets(partition.read(0, 10_000, at_least_one=True, stable=True)) == [0]
    assert offsets(partition.read(0, 10_000, at_least_one=True, stable=False)) == [0, 2, 3, 4, 5]
    aborted = [(it.producer_id, it.first_offset) for it in partition.aborted(0, 2)]
    assert aborted == [(1, 0)]
    assert partition.aborted(4, 6) == []


def test_an_abort_whose_transaction_began_before_the_cache_covers_what_is_seen_of_it() -> None:
    cache = Cache()
    partition = cache.begin(KEY, 7, 0.0)
    history = [batch(7, 1, 1, transactional=True), marker(8, 1, committed=False)]
    cache.extend(partition, memoryview(b"".join(it.data for it in history)))
    known(partition, 9)
    assert [(it.producer_id, it.first_offset) for it in partition.aborted(7, 9)] == [(1, 7)]


def test_another_parent_that_knows_less_takes_nothing_back() -> None:
    partition = Cache().begin(KEY, 0, 0.0)
    known(partition, 9)
    known(partition, 4)
    assert partition.high_watermark == 9


def test_who_waits_hears_of_the_end() -> None:
    heard = []

    class Waiting:
        def changed(self, partition: CachedPartition) -> None:
            heard.append(partition.is_gone)

    cache = Cache()
    partition = cache.begin(KEY, 0, 0.0)
    partition.listen(Waiting())
    cache.drop(partition)
    assert heard == [True]
    assert not partition.holds(0)
