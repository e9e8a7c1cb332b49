"""From entries on disk to the ledger that they add up to."""

from __future__ import annotations

from dataclasses import dataclass

from sapwood.disk import Disk
from sapwood.log import snapshot
from sapwood.log.cache import SegmentCache
from sapwood.log.ledger import Ledger
from sapwood.log.segment import Segment
from sapwood.log.segments import SegmentList
from sapwood.log.state import LogState, Start, StateFile


@dataclass(slots=True)
class LogFiles:
    """A log on disk, and what its entries add up to."""

    disk: Disk
    directory: str
    cache: SegmentCache
    state: StateFile
    segments: SegmentList
    ledger: Ledger
    start_offset: int
    """Ahead of the state on disk while a new start is on its way there."""

    def start(self) -> Start:
        """What segments that are deleted can't tell any more."""
        return {
            "start_offset": self.start_offset,
            "first_segment": self.segments.first_kept(self.start_offset),
            "epochs": self.ledger.epochs.as_of(self.start_offset),
            "voters": tuple(it for it in self.ledger.voters if it[0] < self.start_offset),
        }


def replay(
    disk: Disk, directory: str, segments: list[Segment], state: LogState, now_ms: int
) -> Ledger:
    """The newest snapshot, what the state knows of deleted segments, and the entries behind."""
    found = snapshot.newest(disk, directory, segments[-1].end_offset, state)
    ledger, position = Ledger(voters=state.voters), (-1, 0)
    # Between an old snapshot and a log whose front was deleted batches are missing: to expect a
    # producer where it was then would refuse what it sends now.
    if found is not None and found.offset >= segments[0].base_offset:
        ledger, position = found.ledger, found.position
    for epoch, start in state.epochs:
        ledger.epochs.note(epoch, start)
    _, offset = position
    for segment in segments:
        if segment.end_offset < offset:
            continue  # one that ends there may have markers there
        start = segment.place_after(*position)[0] if offset > segment.base_offset else 0
        for entry in segment.entries(start):
            # Its age is unknown; to forget a producer too early would let duplicates in.
            ledger.note(entry.header, now_ms)
            if entry.header.is_control:
                ledger.note_control(entry.header, segment.batch(entry))
    ledger.epochs.advance(state.start_offset)
    # Compaction has removed all records of what was aborted in its part.
    ledger.transactions.forget_before(max(state.start_offset, state.cleaned_end))
    return ledger
