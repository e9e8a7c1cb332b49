"""A machine of transactions with its log, which can be lost and loaded again."""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from sapwood.coordinator.effects import Answer, Append, Effect
from sapwood.coordinator.transaction import (
    ProducerIdWanted,
    State,
    TopicPartition,
    Transaction,
)
from sapwood.coordinator.transactions import Counters, Limits, SendMarkers, Transactions
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError

TIMEOUT_MS = 60_000
A, B, C = ("orders", 0), ("orders", 1), ("bills", 0)

Producer = tuple[str, int, int]
"""Transactional id, producer id, epoch."""


class Stage:
    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.now_ms = 1_000_000
        self.log: list[tuple[bytes, bytes | None]] = []
        self.batches: list[int] = []
        """Where in the log each batch ends."""
        self.markers: list[SendMarkers] = []
        self.counters = Counters()
        self.connection = 1.0
        self._fresh_ids = itertools.count(100)
        self.machine = Transactions(self.limits, self.counters)
        self.run(self.machine.loaded(self.now_ms))

    # -- requests ----------------------------------------------------------------------------

    def ask(self, question: Callable[[object], list[Effect]]) -> Struct:
        token = object()
        answers = [it for it in self.run(question(token)) if it.token is token]
        assert len(answers) == 1
        return answers[0].message

    def run(self, effects: Iterable[Effect]) -> list[Answer]:
        answers = []
        for effect in effects:
            if isinstance(effect, Append):
                assert effect.records
                self.log += effect.records
                self.batches.append(len(self.log))
            elif isinstance(effect, SendMarkers):
                self.markers.append(effect)
            elif isinstance(effect, Answer):
                answers.append(effect)
        return answers

    def init(
        self,
        name: str = "app",
        claim: tuple[int, int] = (-1, -1),
        *,
        timeout_ms: int = TIMEOUT_MS,
        over: float | None = None,
    ) -> Struct:
        message = Struct(
            transactional_id=name,
            transaction_timeout=timeout_ms,
            producer_id=claim[0],
            producer_epoch=claim[1],
        )
        opened_at = self.connection if over is None else over

        def attempt(fresh_id: int | None) -> Struct:
            return self.ask(
                lambda token: self.machine.init_producer_id(
                    token, message, self.now_ms, opened_at, fresh_id
                )
            )

        try:
            return attempt(None)
        except ProducerIdWanted:
            return attempt(next(self._fresh_ids))

    def producer(self, name: str = "app", **options: Any) -> Producer:
        answer = self.init(name, **options)
        assert answer.error_code == 0
        return name, answer.producer_id, answer.producer_epoch

    def add(
        self, producer: Producer, *partitions: TopicPartition, over: float | None = None
    ) -> None:
        opened_at = self.connection if over is None else over
        message = named(producer)
        self.ask(
            lambda token: self.machine.add_partitions(
                token, message, partitions, self.now_ms, opened_at
            )
        )

    def missing(self, producer: Producer, *partitions: TopicPartition) -> list[TopicPartition]:
        message = named(producer)
        answer = self.ask(lambda token: self.machine.verify(token, message, partitions))
        found: list[TopicPartition] = answer.missing
        return found

    def end(self, producer: Producer, committed: bool, *, over: float | None = None) -> None:
        opened_at = self.connection if over is None else over
        message = named(producer, committed=committed)
        self.ask(lambda token: self.machine.end(token, message, self.now_ms, opened_at))

    def end_group(
        self, query: str, batch_id: int, *children: Producer, committed: bool = True
    ) -> Struct:
        message = Struct(
            query=query,
            batch_id=batch_id,
            children=[named(it) for it in children],
            committed=committed,
        )
        return self.ask(lambda token: self.machine.end_group(token, message, self.now_ms))

    # -- what happens by itself --------------------------------------------------------------

    def mark_all(self) -> list[SendMarkers]:
        """Every marker that was asked for has been written."""
        sent, self.markers = self.markers, []
        for it in sent:
            self.run(self.machine.marked(it, it.partitions, self.now_ms))
        return sent

    def commit(self, producer: Producer, *partitions: TopicPartition) -> None:
        self.add(producer, *(partitions or (A,)))
        self.end(producer, True)
        self.mark_all()

    def pass_time(self, ms: int) -> None:
        """Tick whenever the machine wants to be woken."""
        end_ms = self.now_ms + ms
        while self.machine.wake_at_ms <= end_ms:
            self.now_ms = max(self.now_ms, int(self.machine.wake_at_ms))
            self.run(self.machine.tick(self.now_ms))
        self.now_ms = end_ms

    def reload(self, *, batches: int | None = None, since: float | None = None) -> None:
        """Another node leads: it knows what is in the log, up to so many batches."""
        if batches is not None:
            self.batches = self.batches[:batches]
            self.log = self.log[: self.batches[-1] if self.batches else 0]
        self.markers = []
        self.machine = replayed(self.log, self.limits, self.counters, since or self.connection)
        self.run(self.machine.loaded(self.now_ms))

    # -- questions ---------------------------------------------------------------------------

    def find(self, name: str = "app") -> Transaction | None:
        return next((it for it in self.machine if it.transactional_id == name), None)

    def state(self, name: str = "app") -> State:
        found = self.find(name)
        assert found is not None
        return found.state


def replayed(
    log: Iterable[tuple[bytes, bytes | None]],
    limits: Limits,
    counters: Counters | None = None,
    since: float = 0.0,
) -> Transactions:
    machine = Transactions(limits, counters, since)
    for key, value in log:
        machine.replay(key, value, None)
    return machine


def named(producer: Producer, **more: Any) -> Struct:
    name, producer_id, epoch = producer
    return Struct(transactional_id=name, producer_id=producer_id, producer_epoch=epoch, **more)


def refusal(call: Callable[..., object], *args: object) -> ErrorCode:
    try:
        call(*args)
    except KafkaError as error:
        return error.code
    raise AssertionError("it was not refused")
