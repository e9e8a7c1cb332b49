import pytest

from sapwood.wire.control import (
    TransactionMarker,
    decode_transaction_marker,
    encode_transaction_marker,
)


@pytest.mark.parametrize("committed", [True, False])
def test_a_transactions_end_is_written_as_kafka_does(committed: bool) -> None:
    marker = TransactionMarker(committed, 70_000)
    key, value = encode_transaction_marker(marker)
    assert key == (b"\0\0\0\1" if committed else b"\0\0\0\0")
    assert value == b"\0\0\x00\x01\x11\x70"
    assert decode_transaction_marker(key, value) == marker
    # A later version may say more, behind what is known.
    assert decode_transaction_marker(key + b"?", value + b"?") == marker


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"\0\0\0\0\0\0"),
        (b"\0\0\0\0", None),
        (b"\0\0\0\6", b"\0\0\0\0\0\0"),
        (b"\0\0\0", b"\0\0\0\0\0\0"),
        (b"\0\0\0\0", b"\0\0\0\0\0"),
    ],
)
def test_other_records_are_no_end_of_a_transaction(key: bytes | None, value: bytes | None) -> None:
    assert decode_transaction_marker(key, value) is None
