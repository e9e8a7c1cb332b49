"""Batches that a connection was refused, and whose successors may be on their way already.

Kafka lets a producer that a log doesn't know start at any sequence. But a client sends several
batches before it has an answer. If the first meets a leader that isn't ready yet, or a disk that is
full, and the second a moment later one that is, the log would begin with the second. So whatever
follows a refused batch over the same connection is refused, too, until that one has come again:
as after a gap, which clients know how to mend. Over another connection they begin with the oldest.

A log that knows the producer needs none of this: it sees gaps by itself. And it must not be asked
for: a batch that was refused here while another node led may have been stored there, and then it
never comes again.
"""

from collections.abc import Hashable
from typing import NamedTuple
from weakref import WeakKeyDictionary

from sapwood.server import Connection
from sapwood.wire.batch import BatchHeader
from sapwood.wire.errors import ErrorCode, KafkaError

# More partitions and producers than this on one connection have to do with Kafka's rule.
MAX_REFUSED = 1000


class Sequenced(NamedTuple):
    """A producer's batch, and where it should go."""

    where: Hashable
    sequence: int


def sequenced(place: Hashable, header: BatchHeader) -> Sequenced | None:
    if not header.has_producer or header.base_sequence < 0 or header.is_control:
        return None
    return Sequenced((place, header.producer_id, header.producer_epoch), header.base_sequence)


class Ordering:
    def __init__(self) -> None:
        self._refused: WeakKeyDictionary[Connection, dict[Hashable, int]] = WeakKeyDictionary()

    def check(self, connection: Connection, batch: Sequenced, *, is_known: bool) -> None:
        """Raises if a batch before this one was refused and has not come again.

        `is_known`: the log has records of this producer.
        """
        refused = self._refused.get(connection)
        if not refused or batch.where not in refused:
            return
        if not is_known and batch.sequence > refused[batch.where]:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Sequence {refused[batch.where]} was refused and comes before {batch.sequence}",
            )
        del refused[batch.where]

    def note(self, connection: Connection, batch: Sequenced) -> None:
        """It was refused, and the client will send it again."""
        refused = self._refused.setdefault(connection, {})
        refused[batch.where] = min(batch.sequence, refused.get(batch.where, batch.sequence))
        if len(refused) > MAX_REFUSED:
            del refused[next(iter(refused))]
