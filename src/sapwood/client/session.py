"""What `Client` and `AsyncClient` share: one client id's subscriptions and transactions.

Everything here is a procedure; the two clients only differ in how they run it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

from sapwood.client.batches import Delivery
from sapwood.client.core import ClientCore
from sapwood.client.effects import Ticket
from sapwood.client.errors import error_for
from sapwood.client.group_admin import list_groups_beside
from sapwood.client.merging import Merger
from sapwood.client.messages import Headers, Message, Outgoing, outgoing
from sapwood.client.offsets import LATEST
from sapwood.client.procedures import FOREVER, Procedure, Wait, wait_for
from sapwood.client.subscriber import SEPARATOR, Signed, Subscriber
from sapwood.client.transactions import Transactor
from sapwood.wire.errors import KafkaError

DELIVERIES_TOPIC = "__sapwood_deliveries"

Start = Literal["now", "earliest"]
AckMode = Literal["auto", "manual"]
Body = bytes | str | None
HeaderPairs = Mapping[str, bytes | str] | Headers


class Pending(NamedTuple):
    """How much of one partition one durable subscriber has yet to acknowledge."""

    subscriber: str
    partition: int
    position: int
    end: int

    @property
    def lag(self) -> int:
        return max(0, self.end - self.position)


def until_ms(now_ms: float, timeout_s: float | None) -> float:
    return FOREVER if timeout_s is None else now_ms + timeout_s * 1000


def check_ack_mode(ack: str) -> None:
    if ack not in ("auto", "manual"):
        raise ValueError(f'ack is "auto" or "manual", not {ack!r}')


class Session:
    def __init__(
        self,
        core: ClientCore,
        clock: Callable[[], float],
        wall_clock_ms: Callable[[], int],
        client_id: str | None,
        *,
        receipts: bool,
    ) -> None:
        if client_id is not None and (not client_id or SEPARATOR in client_id):
            raise ValueError(f"{client_id!r} is no id: it must not be empty or contain {SEPARATOR}")
        self._core = core
        self._clock = clock
        self._wall_clock_ms = wall_clock_ms
        self._id = client_id
        self._receipts = receipts
        self._run = self._new_name()
        self.sender = client_id or self._run
        self._put_count = 0
        self._subscribers: dict[str, Subscriber] = {}
        self._idle_transactors: list[Transactor] = []
        self._auditing: dict[str, Ticket[None]] = {}  # gets with receipts: one per topic at a time

    def outgoing(
        self,
        topic: str,
        message: Body,
        key: bytes | str | None,
        headers: HeaderPairs | None,
        message_id: str | None,
    ) -> Outgoing:
        if key is None and self._id is None:
            key = message_id  # repeated by another client, it must get to where it was
        self._put_count += 1
        fresh_id = f"{self._run[:16]}-{self._put_count}"
        return outgoing(
            topic, message, key, headers, message_id, sender=self.sender, fresh_id=fresh_id
        )

    # Subscriptions

    def subscribe(self, topic: str, start: Start) -> Procedure[bool]:
        if start not in ("now", "earliest"):
            raise ValueError(f'start is "now" or "earliest", not {start!r}')
        return (yield from self._subscriber(topic).subscribe(start))

    def unsubscribe(self, topic: str) -> Procedure[None]:
        subscriber = self._subscriber(topic)
        del self._subscribers[topic]
        yield from subscriber.unsubscribe()

    def get_many(self, topic: str, most: int, timeout_s: float | None) -> Procedure[list[Message]]:
        if most < 1:
            raise ValueError("ask for at least one message")
        deadline_ms = until_ms(self._clock(), timeout_s)
        if not self._receipts:
            return (yield from self._subscriber(topic).take(most, deadline_ms))
        while (before := self._auditing.get(topic)) is not None:
            yield Wait((before,))
        turn = self._auditing[topic] = Ticket()
        try:
            return (yield from self._get_with_receipts(topic, most, deadline_ms))
        finally:
            del self._auditing[topic]
            self._core.settle(turn)

    def _get_with_receipts(
        self, topic: str, most: int, deadline_ms: float
    ) -> Procedure[list[Message]]:
        transaction = TransactionCore(self)
        yield from transaction.begin()
        messages: list[Message] = []
        try:
            # After the beginning, which ended what came before. These have their receipts.
            recovered = yield from self._subscriber(topic).recover(most, deadline_ms)
            if recovered:
                yield from transaction.abort()
                return recovered
            messages = yield from transaction.get_many(topic, most, deadline_ms)
            for message in messages:
                yield from self._write_receipt(transaction, message)
            yield from transaction.commit()
        except GeneratorExit:
            transaction.abandon(messages)
            raise
        except BaseException:
            yield from transaction.abort()
            raise
        return messages

    def lend(
        self,
        topic: str,
        most: int,
        timeout_s: float | None,
        ack_timeout_s: float,
        acknowledge: Callable[[Message], Any],
    ) -> Procedure[list[Message]]:
        if self._receipts:
            raise ValueError('receipts are for ack="auto": an ack() is the other kind of receipt')
        return (
            yield from self._subscriber(topic).lend(
                most, until_ms(self._clock(), timeout_s), ack_timeout_s * 1000, acknowledge
            )
        )

    def acknowledge(self, message: Message) -> Procedure[None]:
        yield from self._subscriber(message.topic).acknowledge(message)

    def pending(self, topic: str) -> Procedure[list[Pending]]:
        """Of every durable subscriber of the topic, whoever it is."""
        core, prefix = self._core, f"{topic}{SEPARATOR}"
        known = (yield from wait_for(core.metadata([topic], self._clock()))).topics[topic]
        if known.error_code:
            raise error_for(known.error_code, f"topic {topic}")
        ends = yield from wait_for(
            core.list_offsets({(topic, each): LATEST for each in known.partitions}, self._clock())
        )
        listed = yield from list_groups_beside(core, self._clock, prefix)
        groups = [each.group_id for each in listed if each.group_id.startswith(prefix)]
        found = []
        for group in groups:
            positions = yield from wait_for(core.groups.positions(group, ends, self._clock()))
            if all(each.offset < 0 for each in positions.values()):
                continue
            for (_, partition), each in sorted(positions.items()):
                end = ends[topic, partition].offset
                found.append(Pending(group[len(prefix) :], partition, max(each.offset, 0), end))
        return found

    def merge(self, topics: Iterable[str], start: str, *, stops: bool = False) -> Procedure[Merger]:
        merger = Merger(self._core, self._clock, topics, start, stops=stops)
        try:
            yield from merger.begin()
        except BaseException:
            merger.close()
            raise
        return merger

    def close(self) -> Procedure[None]:
        for subscriber in self._subscribers.values():
            yield from subscriber.close()

    # Transactions

    def borrow_transactor(self, timeout_ms: int) -> Transactor:
        for transactor in reversed(self._idle_transactors):
            if transactor.timeout_ms == timeout_ms:
                self._idle_transactors.remove(transactor)
                return transactor
        # Processes with one id must not fence each other: the members' epochs do that.
        transactional_id = f"{self.sender}{SEPARATOR}{self._new_name()}"
        return self._core.transactor(transactional_id, timeout_ms, self._clock)

    def return_transactor(self, transactor: Transactor) -> None:
        self._idle_transactors.append(transactor)

    def subscriber(self, topic: str) -> Subscriber:
        return self._subscriber(topic)

    def _write_receipt(self, transaction: TransactionCore, message: Message) -> Procedure[None]:
        receipt = {
            "subscriber": self._id,
            "id": message.id,
            "topic": message.topic,
            "partition": message.partition,
            "offset": message.offset,
        }
        known = self._core.usable_topic(DELIVERIES_TOPIC, None)
        if known is None:
            known = yield from wait_for(
                self._core.await_topic(DELIVERIES_TOPIC, None, self._clock())
            )
        key = f"{message.topic}{SEPARATOR}{self._id}".encode()
        record = (self._wall_clock_ms(), key, json.dumps(receipt).encode(), ())
        self._core.append(
            known, record, None, Delivery(), self._clock(), transactor=transaction.transactor
        )

    def _subscriber(self, topic: str) -> Subscriber:
        if self._id is None:
            raise ValueError("a durable subscriber needs an id: Client(bootstrap, id=…)")
        subscriber = self._subscribers.get(topic)
        if subscriber is None:
            subscriber = Subscriber(self._core, self._clock, self._new_name, topic, self._id)
            self._subscribers[topic] = subscriber
        return subscriber

    def _new_name(self) -> str:
        """128 bits that nobody else draws."""
        return "".join(f"{int(self._core.draw() * 2**32):08x}" for _ in range(4))


class TransactionCore:
    """One transaction: what is put and got through it holds altogether or not at all."""

    def __init__(self, session: Session, timeout_ms: int = 60_000) -> None:
        self._session = session
        self._timeout_ms = timeout_ms
        self._transactor: Transactor | None = None
        self._subscribers: list[Subscriber] = []
        self._signed: dict[Subscriber, Signed] = {}

    @property
    def transactor(self) -> Transactor:
        if self._transactor is None:
            raise RuntimeError("the transaction is not open: use it in a `with` block")
        return self._transactor

    def begin(self) -> Procedure[None]:
        transactor = self._session.borrow_transactor(self._timeout_ms)
        try:
            yield from transactor.begin()
        except BaseException:
            self._session.return_transactor(transactor)
            raise
        self._transactor = transactor

    def get_many(self, topic: str, most: int, until_ms: float) -> Procedure[list[Message]]:
        subscriber = self._session.subscriber(topic)
        if subscriber not in self._subscribers:
            self._subscribers.append(subscriber)
        return (yield from subscriber.pick(self, most, until_ms))

    def commit(self) -> Procedure[None]:
        """On an error nothing of the transaction holds, and its messages come again."""
        transactor = self.transactor
        try:
            self._signed = {each: each.sign() for each in self._subscribers if each.is_picked_from}
            yield from transactor.commit(
                {(each.group, one.membership): one.positions for each, one in self._signed.items()}
            )
        except GeneratorExit:
            raise  # `abandon` sees to it
        except BaseException:
            # The last answer may have been lost. If so, the transaction is or isn't committed by
            # the time its successor has begun, and the positions tell.
            yield from self._end_somehow()
            if not (yield from self._release()):
                raise
        else:
            for subscriber in self._subscribers:
                subscriber.keep()
        self._close()

    def abort(self) -> Procedure[None]:
        """After a commit, whatever came of it, there is nothing to abort."""
        if self._transactor is None:
            return
        yield from self._end_somehow()
        yield from self._release()

    def abandon(self, messages: list[Message]) -> None:
        """Nobody waits for its end any more. These messages weren't handed out yet."""
        if self._transactor is None:
            return
        self._transactor.fail(RuntimeError("nobody waits for the transaction any more"))
        for subscriber in self._subscribers:
            subscriber.suspend(self._signed.get(subscriber), messages)
        self._close()

    def _end_somehow(self) -> Procedure[None]:
        try:
            yield from self.transactor.abort()
        except KafkaError:
            pass  # it ends by its timeout, or when the next one begins

    def _release(self) -> Procedure[bool]:
        """Back to before; or True if the positions turn out to be committed."""
        is_committed = bool(self._signed)
        for subscriber in self._subscribers:
            was = yield from subscriber.release(self._signed.get(subscriber))
            is_committed = is_committed and was
        self._close()
        return is_committed

    def _close(self) -> None:
        if self._transactor is not None:
            self._session.return_transactor(self._transactor)
        self._transactor = None
