"""Transactions at a partition: what is let in, how they end, who is fenced."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sapwood.disk import OsDisk
from sapwood.replica import Partition
from sapwood.wire.batch import read_header
from sapwood.wire.control import TransactionMarker, decode_transaction_marker
from sapwood.wire.errors import ErrorCode, KafkaError
from sapwood.wire.records import decode_batch, encode_batch
from tests.replica.held import HeldDisk
from tests.replica.test_partition import NOW_MS, Acknowledgements, on_a_loop, opened, values


def batch(
    *contents: bytes, producer: tuple[int, int, int], transactional: bool = True
) -> memoryview:
    """`producer` is (id, epoch, first sequence)."""
    return memoryview(
        encode_batch(
            [(NOW_MS, None, it, ()) for it in contents],
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=producer[2],
            transactional=transactional,
        )
    )


def write(partition: Partition, *contents: bytes, producer: tuple[int, int, int]) -> int:
    """A batch whose transaction was verified just now."""
    verified = partition.guard_of(producer[0])
    data = batch(*contents, producer=producer)
    return partition.produce(data, NOW_MS, None, verified=verified).base_offset


def end(
    partition: Partition,
    producer_id: int,
    producer_epoch: int,
    *,
    committed: bool = True,
    coordinator_epoch: int = 0,
    on_committed: Callable[[KafkaError | None], None] | None = None,
) -> None:
    partition.end_transaction(
        producer_id,
        producer_epoch,
        committed=committed,
        coordinator_epoch=coordinator_epoch,
        now_ms=NOW_MS,
        on_committed=on_committed,
    )


def refusal(act: Callable[[], object]) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        act()
    return caught.value.code


def stable(partition: Partition) -> list[bytes | None]:
    views = partition.read(0, 10_000, at_least_one=True, stable=True)
    return values([it for it in views if not read_header(it).is_control])


@on_a_loop
async def test_a_transaction_is_stable_when_its_marker_is_committed(tmp_path: Path) -> None:
    disk = HeldDisk()
    partition = await opened(disk, tmp_path)
    acks = Acknowledgements()
    write(partition, b"a", producer=(7, 0, 0))
    await disk.release()
    assert (partition.high_watermark, partition.last_stable_offset) == (1, 0)
    assert stable(partition) == []
    end(partition, 7, 0, on_committed=acks("marker"))
    assert (acks.seen, partition.last_stable_offset) == ([], 0)
    await disk.release()
    assert acks.seen == [("marker", ErrorCode.NONE)]
    assert partition.last_stable_offset == 2
    assert stable(partition) == [b"a"]


@on_a_loop
async def test_a_marker_is_written_as_kafka_does(tmp_path: Path) -> None:
    partition = await opened(OsDisk(), tmp_path, flush="os")
    end(partition, 7, 3, committed=False, coordinator_epoch=5)
    (found,) = partition.read(0, 1000, at_least_one=True)
    header, (record,) = read_header(found), decode_batch(found)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, -1)
    assert (record.key, record.value) == (b"\0\0\0\0", b"\0\0\0\0\0\5")
    marker = decode_transaction_marker(record.key, record.value)
    assert marker == TransactionMarker(committed=False, coordinator_epoch=5)


@on_a_loop
async def test_a_marker_fences_who_used_the_producer_id_before(tmp_path: Path) -> None:
    partition = await opened(OsDisk(), tmp_path, flush="os")
    write(partition, b"a", producer=(7, 0, 0))
    end(partition, 7, 1, committed=False)
    late = batch(b"b", producer=(7, 0, 1))
    guard = partition.guard_of(7)
    assert (
        refusal(lambda: partition.produce(late, NOW_MS, None, verified=guard))
        == ErrorCode.INVALID_PRODUCER_EPOCH
    )
    assert refusal(lambda: end(partition, 7, 0)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert write(partition, b"c", producer=(7, 1, 0)) == 2


@on_a_loop
async def test_a_coordinator_that_was_replaced_ends_nothing(tmp_path: Path) -> None:
    partition = await opened(OsDisk(), tmp_path, flush="os")
    write(partition, b"a", producer=(7, 0, 0))
    end(partition, 7, 0, coordinator_epoch=4)
    write(partition, b"b", producer=(7, 0, 1))
    late = ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert refusal(lambda: end(partition, 7, 0, committed=False, coordinator_epoch=3)) == late
    end(partition, 7, 0, coordinator_epoch=5)
    assert stable(partition) == [b"a", b"b"]


@on_a_loop
async def test_a_marker_may_be_repeated(tmp_path: Path) -> None:
    partition = await opened(OsDisk(), tmp_path, flush="os")
    write(partition, b"a", producer=(7, 0, 0))
    for _ in range(3):
        end(partition, 7, 0, committed=False)
    assert partition.last_stable_offset == partition.high_watermark == 4
    assert len(partition.log.transactions.aborted(0, 4)) == 1


@on_a_loop
async def test_a_batch_belongs_to_a_transaction_if_and_only_if_it_should(tmp_path: Path) -> None:
    partition = await opened(OsDisk(), tmp_path, flush="os")
    unverified = batch(b"a", producer=(7, 0, 0))
    assert (
        refusal(lambda: partition.produce(unverified, NOW_MS, None)) == ErrorCode.INVALID_TXN_STATE
    )
    write(partition, b"a", producer=(7, 0, 0))
    # In a transaction that is open here nobody has to be asked.
    partition.produce(batch(b"b", producer=(7, 0, 1)), NOW_MS, None)
    outside = batch(b"c", producer=(7, 0, 2), transactional=False)
    assert refusal(lambda: partition.produce(outside, NOW_MS, None)) == ErrorCode.INVALID_TXN_STATE
    # A repeat is a repeat, even when its transaction is over.
    end(partition, 7, 0)
    assert partition.produce(batch(b"b", producer=(7, 0, 1)), NOW_MS, None).base_offset == 1
    partition.produce(batch(b"d", producer=(7, 0, 2), transactional=False), NOW_MS, None)


@on_a_loop
async def test_what_was_verified_before_a_marker_came_counts_no_more(tmp_path: Path) -> None:
    partition = await opened(OsDisk(), tmp_path, flush="os")
    for number in range(2):
        verified = partition.guard_of(7)
        end(partition, 7, 0, committed=False)
        late = batch(b"late", producer=(7, 0, number))
        assert (
            refusal(lambda: partition.produce(late, NOW_MS, None, verified=verified))  # noqa: B023
            == ErrorCode.INVALID_TXN_STATE
        )
    assert partition.last_stable_offset == partition.high_watermark == 2


@on_a_loop
async def test_a_coordinators_own_batches_have_no_sequence(tmp_path: Path) -> None:
    partition = await opened(OsDisk(), tmp_path, flush="os")
    for _ in range(3):
        data = batch(b"position", producer=(7, 2, -1))
        partition.append(data, read_header(data), NOW_MS, -1, None)
    assert partition.last_stable_offset == 0
    data = batch(b"position", producer=(7, 1, -1))
    assert (
        refusal(lambda: partition.append(data, read_header(data), NOW_MS, -1, None))
        == ErrorCode.INVALID_PRODUCER_EPOCH
    )
    end(partition, 7, 2)
    assert stable(partition) == [b"position"] * 3


@on_a_loop
async def test_a_newer_epoch_does_not_go_on_with_an_older_ones_transaction(tmp_path: Path) -> None:
    partition = await opened(OsDisk(), tmp_path, flush="os")
    write(partition, b"aborted", producer=(7, 0, 0))
    newer = ErrorCode.INVALID_TXN_STATE
    assert refusal(lambda: write(partition, b"a", producer=(7, 1, 0))) == newer
    plain = batch(b"a", producer=(7, 1, 0), transactional=False)
    assert refusal(lambda: partition.produce(plain, NOW_MS, None)) == newer
    end(partition, 7, 1, committed=False)
    assert write(partition, b"a", producer=(7, 1, 0)) == 2
    end(partition, 7, 1)
    assert [it.first_offset for it in partition.log.transactions.aborted(0, 4)] == [0]
