"""Bugs that tier 2 must find: each is a patch of the shipped code, by name."""

from __future__ import annotations

import contextlib
from typing import Any

from sapwood.log import entry as log_entry
from sapwood.log import producers as log_producers
from sapwood.log import segment as log_segment
from sapwood.node import identity as node_identity
from sapwood.raft import HardState, Position
from sapwood.replica import Appended, OnCommitted, Partition, Replicas
from sapwood.wire.batch import BatchHeader
from sim.planting import Plant, patched


def _ack_before_sync(stack: contextlib.ExitStack) -> None:
    """A replica takes what is written for what is synced."""
    written = property(lambda self: Position(*self.log.position))
    stack.enter_context(patched(Partition, "durable", written))
    sync = Partition.sync

    def sync_and_go_on(self: Partition) -> None:
        sync(self)
        self._now_durable()

    stack.enter_context(patched(Partition, "sync", sync_and_go_on))


def _crc_skipped(stack: contextlib.ExitStack) -> None:
    def check_nothing(data: Any, local: int, entry: Any) -> None:
        return

    stack.enter_context(patched(log_entry, "check_batch", check_nothing))
    stack.enter_context(patched(log_segment, "check_batch", check_nothing))


def _dedup_window_of_one(stack: contextlib.ExitStack) -> None:
    stack.enter_context(patched(log_producers, "WINDOW", 1))


def _duplicate_acknowledged_early(stack: contextlib.ExitStack) -> None:
    append = Partition.append

    def append_or_say_yes(
        self: Partition,
        batch: memoryview,
        header: BatchHeader,
        now_ms: int,
        append_time_ms: int,
        on_committed: OnCommitted | None,
        **options: Any,
    ) -> Appended:
        duplicate = self.log.producers.original(header)
        if duplicate is not None and self.leads and on_committed is not None:
            on_committed(None)
            return Appended(duplicate.base_offset, append_time_ms)
        return append(self, batch, header, now_ms, append_time_ms, on_committed, **options)

    stack.enter_context(patched(Partition, "append", append_or_say_yes))


def _vote_not_persisted(stack: contextlib.ExitStack) -> None:
    def save_nothing(self: Replicas, partition: Partition, state: HardState) -> None:
        return

    stack.enter_context(patched(Replicas, "save", save_nothing))


def _unconfirmed_reads(stack: contextlib.ExitStack) -> None:
    """Reads are served before the leader's own term has committed anything."""
    stack.enter_context(patched(Partition, "is_confirmed", Partition.leads))


def _wiped_voter_keeps_its_identity(stack: contextlib.ExitStack) -> None:
    stack.enter_context(patched(node_identity, "new_incarnation", lambda entropy: 7))


PLANTS: dict[str, Plant] = {
    "ack-before-sync": _ack_before_sync,
    "crc-skipped": _crc_skipped,
    "dedup-window-of-one": _dedup_window_of_one,
    "duplicate-acknowledged-early": _duplicate_acknowledged_early,
    "vote-not-persisted": _vote_not_persisted,
    "unconfirmed-reads": _unconfirmed_reads,
    "wiped-voter-keeps-its-identity": _wiped_voter_keeps_its_identity,
}
