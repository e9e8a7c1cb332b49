"""Bugs that tier 2 must find: each is a patch of the shipped code, by name."""

from __future__ import annotations

import contextlib
from typing import Any

from sapwood.broker.coordinating import Shard
from sapwood.coordinator.classic_group import ClassicGroup
from sapwood.coordinator.consumer_group import ConsumerGroup
from sapwood.coordinator.effects import Answer, Effect
from sapwood.coordinator.groups import Groups
from sapwood.coordinator.transaction import Transaction
from sapwood.coordinator.transactions import Transactions
from sapwood.edge.cache import CachedPartition
from sapwood.edge.fetching import _Attempt
from sapwood.log import entry as log_entry
from sapwood.log import producers as log_producers
from sapwood.log import segment as log_segment
from sapwood.log.producers import ProducerTable
from sapwood.node import identity as node_identity
from sapwood.raft import HardState, Position
from sapwood.replica import Appended, OnCommitted, Partition, Replicas
from sapwood.replica.exchange import Exchange
from sapwood.replica.followers import FollowerSession, Member
from sapwood.replica.notes import Notes
from sapwood.wire.batch import BatchHeader
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError
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
    """A producer's last batch is known, and what came before it is taken for new."""
    check = ProducerTable.check

    def check_the_last(self: ProducerTable, header: BatchHeader, now_ms: int) -> int | None:
        try:
            return check(self, header, now_ms)
        except KafkaError as error:
            if error.code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                return None
            raise

    stack.enter_context(patched(log_producers, "WINDOW", 1))
    stack.enter_context(patched(ProducerTable, "check", check_the_last))


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


def _link_vouches_for_offline_replica(stack: contextlib.ExitStack) -> None:
    """A replica that is offline stays on the lists of its node's links, at both of their ends."""
    gone, take, serve = Exchange.gone, FollowerSession._take, FollowerSession._serve

    def gone_if_deleted(self: Exchange, partition: Partition) -> None:
        if self._look_up(partition.key) is not partition:
            gone(self, partition)

    def take_all(self: FollowerSession, it: Struct, seen: int, now: float) -> None:
        partition = self._look_up((it.topic_id, it.partition))
        if partition is None or partition.offline_reason is None:
            take(self, it, seen, now)

    def serve_nothing(
        self: FollowerSession, member: Member, budget: int
    ) -> tuple[Struct | None, int, bool]:
        if member.partition.offline_reason is not None:
            return None, 0, True
        return serve(self, member, budget)

    stack.enter_context(patched(Exchange, "gone", gone_if_deleted))
    stack.enter_context(patched(FollowerSession, "_take", take_all))
    stack.enter_context(patched(FollowerSession, "_serve", serve_nothing))


def _end_txn_without_epoch_check(stack: contextlib.ExitStack) -> None:
    """Whoever knows a producer id may end its transactions, and add to them."""

    def named(self: Transactions, message: Struct) -> Transaction:
        transaction = self._transactions.get(message.transactional_id)
        if transaction is None or transaction.producer_id != message.producer_id:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return transaction

    stack.enter_context(patched(Transactions, "_named", named))


def _last_stable_offset_ignored(stack: contextlib.ExitStack) -> None:
    """Readers of what is committed get what may yet be aborted."""
    stack.enter_context(patched(Partition, "last_stable_offset", Partition.high_watermark))


def _coordinator_answers_early(stack: contextlib.ExitStack) -> None:
    """What a coordinator tells may yet be lost with its leader."""

    def release_all(self: Shard[Any]) -> None:
        while self._held and not self._is_stepping:
            self._held.popleft()[1]()

    stack.enter_context(patched(Shard, "_release", release_all))


def _positions_told_early(stack: contextlib.ExitStack) -> None:
    """OffsetFetch tells of commits that may yet be lost."""
    fetch = Groups.fetch

    def fetch_and_tell(self: Groups, token: Any, *about: Any, **options: Any) -> list[Effect]:
        effects = fetch(self, token, *about, **options)
        for effect in effects:
            if isinstance(effect, Answer):
                token.set_result(effect.message)
        return effects

    stack.enter_context(patched(Groups, "fetch", fetch_and_tell))


def _fenced_commit_accepted(stack: contextlib.ExitStack) -> None:
    """Whoever was a member once may commit."""

    def accept(self: Any, *about: Any, **options: Any) -> None:
        return

    for group in (ClassicGroup, ConsumerGroup):
        stack.enter_context(patched(group, "check_commit", accept))


def _clock_not_kept(stack: contextlib.ExitStack) -> None:
    """What a node promises of its clock is forgotten with its process."""

    def note_nothing(self: Notes, bound: int) -> None:
        return

    stack.enter_context(patched(Notes, "note_clock", note_nothing))


def _edge_says_out_of_range(stack: contextlib.ExitStack) -> None:
    """An edge takes the end of what it has heard for the end of the log."""
    read = _Attempt._read_one

    def read_or_refuse(
        self: _Attempt, partition: CachedPartition, request: Struct, budget: int
    ) -> Struct:
        result = read(self, partition, request, budget)
        if request.fetch_offset > partition.high_watermark:
            result.error_code = int(ErrorCode.OFFSET_OUT_OF_RANGE)
            self._is_fenced = True
        return result

    stack.enter_context(patched(_Attempt, "_read_one", read_or_refuse))


PLANTS: dict[str, Plant] = {
    "ack-before-sync": _ack_before_sync,
    "clock-not-kept": _clock_not_kept,
    "coordinator-answers-early": _coordinator_answers_early,
    "crc-skipped": _crc_skipped,
    "dedup-window-of-one": _dedup_window_of_one,
    "edge-says-out-of-range": _edge_says_out_of_range,
    "duplicate-acknowledged-early": _duplicate_acknowledged_early,
    "end-txn-without-epoch-check": _end_txn_without_epoch_check,
    "fenced-commit-accepted": _fenced_commit_accepted,
    "last-stable-offset-ignored": _last_stable_offset_ignored,
    "positions-told-early": _positions_told_early,
    "vote-not-persisted": _vote_not_persisted,
    "unconfirmed-reads": _unconfirmed_reads,
    "link-vouches-for-offline-replica": _link_vouches_for_offline_replica,
    "wiped-voter-keeps-its-identity": _wiped_voter_keeps_its_identity,
}
