"""Control records: what a log says about itself. They take an offset, and clients skip them.

The key is a version and a type, Kafka's; what the value holds depends on the type.
"""

import struct
from typing import NamedTuple

_KEY = struct.Struct(">hh")  # version, type
_VALUE = struct.Struct(">hi")  # version, coordinator epoch
_VERSION = 0
_ABORT, _COMMIT = 0, 1


class TransactionMarker(NamedTuple):
    """The end of a producer's transaction; the producer is in the header of the batch."""

    committed: bool
    coordinator_epoch: int


def encode_transaction_marker(marker: TransactionMarker) -> tuple[bytes, bytes]:
    """The record's key and value."""
    kind = _COMMIT if marker.committed else _ABORT
    return _KEY.pack(_VERSION, kind), _VALUE.pack(_VERSION, marker.coordinator_epoch)


def decode_transaction_marker(key: bytes | None, value: bytes | None) -> TransactionMarker | None:
    """None if the record is of another type. Later versions may be longer."""
    if key is None or value is None or len(key) < _KEY.size or len(value) < _VALUE.size:
        return None
    kind = _KEY.unpack_from(key)[1]
    if kind not in (_ABORT, _COMMIT):
        return None
    return TransactionMarker(kind == _COMMIT, _VALUE.unpack_from(value)[1])
