"""What the entries of a log add up to: its producers, transactions, epochs and voters.

Whatever has seen the same entries has the same ledger: the process that appended them, the one
that replays them after a restart, and the replica that fetched them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from sapwood.disk import Buffer
from sapwood.log.epochs import EpochList
from sapwood.log.producers import ProducerTable
from sapwood.log.transactions import TransactionTable
from sapwood.wire.batch import CONTROL, TRANSACTIONAL, BatchHeader
from sapwood.wire.control import decode_transaction_marker
from sapwood.wire.errors import MalformedMessage
from sapwood.wire.records import decode_batch

VOTERS_KEY = struct.pack(">hh", 0, 6)
"""The key of a control record that says who votes: version 0, type 6 as in Kafka."""
# Only one change at a time is not committed, so the last one or two would do.
KEPT_VOTERS = 8

Voters = list[tuple[int, bytes]]


class Ledger:
    __slots__ = ("epochs", "producers", "transactions", "voters")

    def __init__(
        self,
        producers: ProducerTable | None = None,
        epochs: Iterable[tuple[int, int]] = (),
        voters: Iterable[tuple[int, bytes]] = (),
        transactions: TransactionTable | None = None,
    ) -> None:
        self.producers = ProducerTable() if producers is None else producers
        self.transactions = TransactionTable() if transactions is None else transactions
        self.epochs = EpochList(epochs)
        self.voters: Voters = list(voters)
        """(offset, value) of the last records that said who votes."""

    def note(self, header: BatchHeader, now_ms: int) -> None:
        """Count an entry. A control batch has to be given to `note_control`, too."""
        if header.producer_id >= 0:
            self.producers.update(header, now_ms)
            kind = header.attributes & (TRANSACTIONAL | CONTROL)
            # One without records was kept by compaction, for its sequence.
            if kind == TRANSACTIONAL and header.record_count:
                self.transactions.begin(header.producer_id, header.base_offset)
        self.epochs.note(header.leader_epoch, header.base_offset)

    def note_control(self, header: BatchHeader, batch: Buffer) -> None:
        try:
            record = decode_batch(batch)[0]
        except (MalformedMessage, IndexError):
            return
        if record.key == VOTERS_KEY and record.value is not None:
            self.cut_voters(record.offset)
            self.voters.append((record.offset, record.value))
            del self.voters[:-KEPT_VOTERS]
        marker = decode_transaction_marker(record.key, record.value)
        if marker is not None and header.producer_id >= 0:
            producer_id = header.producer_id
            self.transactions.end(producer_id, record.offset, committed=marker.committed)
            self.producers.marked(producer_id, record.offset, marker.coordinator_epoch)

    def as_of(self, offset: int) -> Ledger:
        """The ledger of a log that ends at `offset`, where this one starts."""
        voters = [it for it in self.voters if it[0] < offset]
        if not voters and len(self.voters) == KEPT_VOTERS and offset > 0:
            # The ones before are forgotten, but of so many all except the last are committed.
            voters = [(offset - 1, self.voters[0][1])]
        return Ledger(
            self.producers.as_of(offset),
            self.epochs.as_of(offset),
            voters,
            self.transactions.as_of(offset),
        )

    def cut_voters(self, offset: int) -> None:
        """Forget what was said from `offset` on."""
        self.voters = [it for it in self.voters if it[0] < offset]
