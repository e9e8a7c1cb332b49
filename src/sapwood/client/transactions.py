"""Transactions: records to any partitions, and positions of groups, as one step or not at all.

    begin --> OPEN --commit--> ready for the next
               \\---abort or anything that failed---> a new identity, which fences the old one
               \\---leave open--> for somebody else to end, by `transaction_groups`

A transaction that failed can only be aborted. Its successor gets a new epoch, so that nothing of
the failed one can arrive late, and no sequence number needs to be accounted for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from sapwood.client.batches import Identity
from sapwood.client.calls import GROUP, TRANSACTION, Call, Coordinator, Router, Target
from sapwood.client.cluster import ClusterView, TopicPartition
from sapwood.client.config import ClientConfig
from sapwood.client.effects import Effects, Ticket
from sapwood.client.errors import MISPLACED, error_for
from sapwood.client.groups import Committed, Membership, committed_topics, read_committed_topics
from sapwood.client.pool import ConnectionPool
from sapwood.client.procedures import Procedure, Wait, wait_for
from sapwood.client.producer import Producer
from sapwood.client.transaction_groups import Child
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError

T = TypeVar("T")

# The coordinator is still busy with the transaction before.
_RETRIED = MISPLACED | {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.REQUEST_TIMED_OUT,
}

# Above these versions every transaction has an epoch of its own, which not every broker offers.
_HIGHEST = {
    Api.INIT_PRODUCER_ID: 5,
    Api.ADD_PARTITIONS_TO_TXN: 3,
    Api.ADD_OFFSETS_TO_TXN: 4,
    Api.TXN_OFFSET_COMMIT: 4,
    Api.END_TXN: 4,
}


class Transactor:
    """Runs one transaction after the other under one transactional id."""

    def __init__(
        self,
        config: ClientConfig,
        view: ClusterView,
        pool: ConnectionPool,
        router: Router,
        effects: Effects,
        draw: Callable[[], float],
        clock: Callable[[], float],
        transactional_id: str,
        timeout_ms: int,
    ) -> None:
        self._config = config
        self._router = router
        self._effects = effects
        self._clock = clock
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self.identity: Identity | None = None
        self.failure: Exception | None = None
        self._parts = config, view, pool, router, effects, draw
        self.producer = Producer(*self._parts, self)
        self._known: set[TopicPartition] = set()
        self._announced: set[TopicPartition] = set()
        self._announcement: tuple[Ticket[None], set[TopicPartition]] | None = None
        self._has_positions = False
        self._beginning: Ticket[Identity] | None = None
        self._asked: list[Call[Any]] = []

    # As the scope of its producer

    def admits(self, key: TopicPartition) -> bool:
        if self.failure is None:
            self._announced.add(key)
        return self.failure is None and key in self._known

    def fail(self, error: Exception) -> None:
        self.failure = self.failure or error

    # As a part of the core

    def poll(self, now_ms: float) -> None:
        if self._announcement is not None and self._announcement[0].done:
            (ticket, keys), self._announcement = self._announcement, None
            if ticket.error is not None:
                self._give_up(ticket.error)
            self._known |= keys
        self.producer.poll(now_ms)
        if self.failure is not None:
            self.producer.close(self.failure)
        missing = self._announced - self._known
        if missing and self._announcement is None and self.failure is None:
            self._announcement = self._announce(missing, now_ms), missing

    def moments(self) -> Iterator[float]:
        return self.producer.moments()

    def close(self, error: Exception) -> None:
        self._give_up(error)

    # What is wanted

    def begin(self) -> Procedure[None]:
        if self.identity is not None and self.failure is None:
            return
        self.producer.close(self.failure or RuntimeError("a new transaction has begun"))
        self.producer = Producer(*self._parts, self)
        self._forget()
        message = Struct(
            transactional_id=self.transactional_id,
            transaction_timeout=self.timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
        )
        if self._beginning is None:
            self._beginning = self._ask(Api.INIT_PRODUCER_ID, message, self._target, _read_identity)
        # Whoever asked for it may have been interrupted: a second one would fence the first.
        beginning = self._beginning
        if not beginning.done:
            yield Wait((beginning,))
        self._beginning = None
        self.identity = beginning.result()
        self.failure = None

    def commit(
        self, positions: Mapping[tuple[str, Membership], Mapping[TopicPartition, Committed]]
    ) -> Procedure[None]:
        """Positions by group and member. If this fails, so has everything in the transaction."""
        try:
            yield from wait_for(self.producer.flush())
            for (group, membership), each in positions.items():
                if self.failure is None:
                    yield from self._send_positions(group, membership, each)
            if self.failure is not None:
                raise self.failure
            yield from self._end(committed=True)
        except BaseException as error:
            self._give_up(error if isinstance(error, Exception) else RuntimeError("interrupted"))
            raise

    def leave_open(self) -> Procedure[Child | None]:
        """Everything stored, and who has stored it; None if there was nothing.

        Whoever ends it has to come before the timeout. Here the next `begin` would end it, too.
        """
        yield from wait_for(self.producer.flush())
        if self.failure is not None:
            raise self.failure
        if self.identity is None or not self._announced:
            return None
        child = Child(self.transactional_id, *self.identity)
        self._give_up(RuntimeError("the transaction was left to somebody else"))
        return child

    def abort(self) -> Procedure[None]:
        """If nobody answers, the transaction ends by its timeout, or when the next one begins."""
        had_failed = self.failure is not None
        self._give_up(RuntimeError("the transaction was aborted"))
        try:
            yield from self._end(committed=False)
        except KafkaError:
            if not had_failed:
                raise

    def _send_positions(
        self, group: str, membership: Membership, positions: Mapping[TopicPartition, Committed]
    ) -> Procedure[None]:
        if not positions:
            return
        identity = self._identity_fields()
        add = Struct(transactional_id=self.transactional_id, group_id=group, **identity)
        self._has_positions = True
        yield from wait_for(
            self._ask(Api.ADD_OFFSETS_TO_TXN, add, self._target, self._refuse_if_failed)
        )
        message = Struct(
            transactional_id=self.transactional_id,
            group_id=group,
            generation_id=membership.epoch,
            member_id=membership.member_id,
            group_instance_id=None,
            topics=committed_topics(positions),
            **identity,
        )
        yield from wait_for(
            self._ask(
                Api.TXN_OFFSET_COMMIT,
                message,
                Coordinator(GROUP, group),
                lambda answer: read_committed_topics(group, answer),
            )
        )

    def _end(self, *, committed: bool) -> Procedure[None]:
        if self.identity is None or not (self._announced or self._has_positions):
            return  # the coordinator has heard of nothing
        message = Struct(
            transactional_id=self.transactional_id, committed=committed, **self._identity_fields()
        )
        yield from wait_for(self._ask(Api.END_TXN, message, self._target, self._refuse_if_failed))
        if any(call.was_cut for call in self._asked):
            # What was said twice may arrive the second time in the middle of the next transaction,
            # and positions of groups would go back: that one gets another epoch.
            self.identity = None
        self._forget()

    def _announce(self, keys: set[TopicPartition], now_ms: float) -> Ticket[None]:
        by_topic: dict[str, list[int]] = {}
        for topic, partition in sorted(keys):
            by_topic.setdefault(topic, []).append(partition)
        identity = self._identity_fields()
        message = Struct(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=identity["producer_id"],
            v3_and_below_producer_epoch=identity["producer_epoch"],
            v3_and_below_topics=[
                Struct(name=name, partitions=each) for name, each in by_topic.items()
            ],
        )

        def read(answer: Struct) -> None:
            for topic in answer.results_by_topic_v3_and_below:
                for partition in topic.results_by_partition:
                    if partition.partition_error_code:
                        raise error_for(
                            partition.partition_error_code,
                            f"transaction {self.transactional_id}, topic {topic.name}",
                        )

        return self._ask(Api.ADD_PARTITIONS_TO_TXN, message, self._target, read, now_ms)

    def _ask(
        self,
        api: Api,
        message: Struct,
        target: Target,
        read: Callable[[Struct], T],
        now_ms: float | None = None,
    ) -> Ticket[T]:
        now_ms = self._clock() if now_ms is None else now_ms
        ticket: Ticket[T] = Ticket()
        call = Call(
            api,
            message,
            target,
            read,
            ticket,
            now_ms,
            now_ms + self._config.api_timeout_ms,
            max_version=_HIGHEST[api],
            retried=_RETRIED,
        )
        self._asked.append(call)
        self._router.submit(call)
        return ticket

    @property
    def _target(self) -> Coordinator:
        return Coordinator(TRANSACTION, self.transactional_id)

    def _identity_fields(self) -> dict[str, Any]:
        if self.identity is None:
            raise RuntimeError("the transaction has not begun")
        return {
            "producer_id": self.identity.producer_id,
            "producer_epoch": self.identity.epoch,
        }

    def _refuse_if_failed(self, answer: Struct) -> None:
        if answer.error_code:
            raise error_for(answer.error_code, f"transaction {self.transactional_id}")

    def _give_up(self, error: Exception) -> None:
        """Nothing more of this transaction is sent, and its identity isn't used again."""
        self.fail(error)
        self.producer.close(error)

    def _forget(self) -> None:
        self._announcement = None  # of another transaction, if it is still under way
        self._known.clear()
        self._announced.clear()
        self._has_positions = False
        self._asked.clear()


def _read_identity(answer: Struct) -> Identity:
    if answer.error_code:
        raise error_for(answer.error_code, "no transaction can begin")
    return Identity(answer.producer_id, answer.producer_epoch)
