"""Readers of committed records leave out what was aborted, and nothing else."""

from sapwood.client.fetcher import Chunk, read_records
from sapwood.wire.records import encode_batch


def batch(offset: int, value: bytes, producer_id: int, *, control: bool = False) -> bytes:
    key = b"\0\0\0\0" if control else None  # version 0, type 0: an abort
    return bytes(
        encode_batch(
            [(1, key, value, ())],
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=0,
            transactional=producer_id >= 0,
            control=control,
        )
    )


def values(data: bytes, aborted: tuple[tuple[int, int], ...], first: int = 0) -> list[bytes | None]:
    chunk = Chunk("t", 0, first, 99, None, 99, memoryview(data), aborted)
    return [record.value for record in read_records(chunk)]


LOG = (
    batch(0, b"plain", -1)
    + batch(1, b"aborted", 7)
    + batch(2, b"committed", 8)
    + batch(3, b"", 7, control=True)
    + batch(4, b"later", 7)
    + batch(5, b"aborted later", 8)
    + batch(6, b"", 8, control=True)
)


def test_records_of_aborted_transactions_are_left_out_up_to_their_marker() -> None:
    assert values(LOG, ((8, 5), (7, 1))) == [b"plain", b"committed", b"later"]


def test_a_reader_that_begins_in_the_middle_of_an_aborted_transaction_leaves_out_its_rest() -> None:
    cut = LOG[len(batch(0, b"plain", -1)) :]
    assert values(cut, ((7, 0), (8, 5)), first=1) == [b"committed", b"later"]


def test_whoever_reads_uncommitted_records_reads_all_but_the_markers() -> None:
    assert len(values(LOG, ())) == 5
