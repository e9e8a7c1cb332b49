"""`Client`: put and get, exactly once, for plain programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Literal

from sapwood.client.blocking import BlockingDelivery, KafkaClient
from sapwood.client.config import READ_COMMITTED
from sapwood.client.merging import Merger, MergeStart
from sapwood.client.messages import Message, Stored, received
from sapwood.client.session import (
    AckMode,
    Body,
    HeaderPairs,
    Pending,
    Session,
    Start,
    TransactionCore,
    check_ack_mode,
    until_ms,
)


class Put:
    """A message on its way."""

    __slots__ = ("_delivery", "id")

    def __init__(self, message_id: str, delivery: BlockingDelivery) -> None:
        self.id = message_id
        self._delivery = delivery

    def wait(self, timeout: float | None = None) -> Stored:
        """Until the message is safe; TimeoutError if that takes longer, in seconds."""
        return Stored(self.id, *self._delivery.get(timeout))


class Client:
    """Put messages into topics, and get those of durable subscriptions, each exactly once.

    `id` names the subscriber, and is the sender of what it puts. A subscriber is its id: it may
    come back from another process or host after any time and goes on where it was, and processes
    that use one id at the same time share its messages between them.

    When `put` has returned, the message is on disk on a quorum and every durable subscriber of
    its topic will get it. When `get` has returned a message, no `get` of this id returns it
    again, whatever crashes. One window nobody can close: a process that dies after `get` has
    returned, or is about to, and before it has done its work with the message, takes the message
    with it. Who would rather see such messages twice than never uses `ack="manual"`.

    For one thread at a time. Options are the fields of ClientConfig. There is no thread behind
    it: a client that makes no call for longer than the group's session timeout hands its
    partitions to other processes with its id, if there are any, and takes part again with its
    next call.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        id: str | None = None,  # noqa: A002
        *,
        receipts: bool = False,
        **options: Any,
    ) -> None:
        """`receipts`: with every position a record goes to the topic `__sapwood_deliveries`, in
        one transaction, that says who got what. It costs a transaction per get."""
        options = {"client_id": id or "sapwood", "isolation_level": READ_COMMITTED, **options}
        self._kafka = KafkaClient(bootstrap, **options)
        clocks = self._kafka.now_ms, self._kafka.wall_clock_ms
        self._session = Session(self._kafka.core, *clocks, id, receipts=receipts)

    @property
    def id(self) -> str:
        """Of this subscriber, and the sender of what it puts; a random one if none was given."""
        return self._session.sender

    def __enter__(self) -> Client:
        self._kafka.connect()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.flush()
        self.close()

    def close(self) -> None:
        """Subscriptions stay; what was put without waiting and isn't flushed may be lost."""
        self._kafka.run(self._session.close())
        self._kafka.close()

    # Putting

    def put(
        self,
        topic: str,
        message: Body,
        key: bytes | str | None = None,
        headers: HeaderPairs | None = None,
        id: str | None = None,  # noqa: A002
    ) -> Stored:
        """Store a message; when this returns, it is safe, and stored once.

        The key decides on the partition, within which order holds; the default is this client's id
        or, for a message with an id from a client without one, the message's.
        If this raises, or the process dies, the message may or may not be stored. With an `id` of
        your own, unique in its topic, repeat the call under the same key: a message that is there
        already isn't stored again. The topic remembers the last ids of each partition (see
        docs/guarantees.md); don't add partitions to it between a put and its repeat.
        """
        return self.put_nowait(topic, message, key, headers, id).wait()

    def put_many(
        self,
        topic: str,
        messages: Iterable[Body],
        key: bytes | str | None = None,
        headers: HeaderPairs | None = None,
        ids: Iterable[str] | None = None,
    ) -> list[Stored]:
        """Store messages, in their order, in few batches; safe when this returns.

        Messages with ids of their own travel one by one, each in a batch of its own.
        """
        ids = None if ids is None else iter(ids)
        puts = [
            self.put_nowait(topic, each, key, headers, None if ids is None else next(ids))
            for each in messages
        ]
        return [each.wait() for each in puts]

    def put_nowait(
        self,
        topic: str,
        message: Body,
        key: bytes | str | None = None,
        headers: HeaderPairs | None = None,
        id: str | None = None,  # noqa: A002
    ) -> Put:
        """Accept a message; `wait` on the result, or `flush`, to know that it is safe."""
        out = self._session.outgoing(topic, message, key, headers, id)
        delivery = self._kafka.send(
            topic, out.value, out.key, out.headers, message_key=out.message_key
        )
        return Put(out.id, delivery)

    def flush(self) -> None:
        """Until everything put so far is safe or has failed."""
        self._kafka.flush()

    # Getting

    def subscribe(self, topic: str, start: Start = "now") -> bool:
        """Begin a durable subscription with the next message, or with the earliest that is left.

        Durable when this returns. True if this began it: one that is there stays where it is.
        Retention doesn't delete what it hasn't got, and it doesn't lapse: `unsubscribe` ends it.
        """
        return self._kafka.run(self._session.subscribe(topic, start))

    def unsubscribe(self, topic: str) -> None:
        """End the subscription, for all processes with this id; nothing of it is kept."""
        self._kafka.run(self._session.unsubscribe(topic))

    def get(
        self,
        topic: str,
        timeout: float | None = None,
        *,
        ack: AckMode = "auto",
        ack_timeout: float = 30.0,
    ) -> Message | None:
        """The next message of this subscriber; None if none comes within `timeout` seconds.

        Its position is committed on a quorum before it is returned, so it never comes again. With
        `ack="manual"` it comes again unless `message.ack()` is called within `ack_timeout` seconds,
        or when another process takes over; acknowledged messages never do.
        NotSubscribed without a subscription; PositionLost, once, if messages were deleted first.
        """
        found = self.get_many(topic, 1, timeout, ack=ack, ack_timeout=ack_timeout)
        return found[0] if found else None

    def get_many(
        self,
        topic: str,
        max: int = 100,  # noqa: A002
        timeout: float | None = None,
        *,
        ack: AckMode = "auto",
        ack_timeout: float = 30.0,
    ) -> list[Message]:
        """What is there, up to `max` messages, with one commit for all of them; waits for one.

        The window of `get` is that much wider: a crash before their use takes all of them.
        """
        check_ack_mode(ack)
        if ack == "auto":
            return self._kafka.run(self._session.get_many(topic, max, timeout))
        return self._kafka.run(
            self._session.lend(topic, max, timeout, ack_timeout, self._acknowledge)
        )

    def messages(
        self,
        topic: str,
        timeout: float | None = None,
        *,
        ack: AckMode = "auto",
        ack_timeout: float = 30.0,
    ) -> Iterator[Message]:
        """One `get` after the other, until none comes within `timeout` seconds."""
        while True:
            message = self.get(topic, timeout, ack=ack, ack_timeout=ack_timeout)
            if message is None:
                return
            yield message

    def pending(self, topic: str) -> list[Pending]:
        """Of every durable subscriber of a topic: how much it has yet to acknowledge."""
        return self._kafka.run(self._session.pending(topic))

    def merged(
        self,
        *topics: str,
        start: MergeStart | str = "now",
        timeout: float | None = None,
        stop: Literal["now"] | None = None,
    ) -> Merged:
        """The messages of these topics in one order, the same for every reader.

        It is the order in which the cluster stored them: by append time on the cluster's own clock,
        then topic id, partition and offset. What a sender put later comes later; so does what a
        client put that had got or put something before, whichever node it was connected to. It
        begins `now`, with the `earliest` message that is left, or behind a position of another
        reader, and ends if nothing comes within `timeout` seconds, or, with `stop="now"`,
        at what there is now. No subscription, and no position is kept: `position` has it.

            for message in client.merged("orders", "payments"):
                ...
        """
        procedure = self._session.merge(topics, start, stops=stop == "now")
        return Merged(self._kafka, self._kafka.run(procedure), timeout)

    def transaction(self, timeout: float = 60.0) -> Transaction:
        """What is put and got through it holds altogether or not at all.

            with client.transaction() as transaction:
                order = transaction.get("orders")
                transaction.put("invoices", invoice(order))

        Committed at the end of the block; if the block raises, nothing of it is ever seen, and the
        messages come again. A transaction longer than `timeout` seconds is aborted.
        """
        return Transaction(self._kafka, self._session, timeout)

    def _acknowledge(self, message: Message) -> None:
        self._kafka.run(self._session.acknowledge(message))


class Merged:
    """An iterator of messages in the merged order."""

    def __init__(self, kafka: KafkaClient, merger: Merger, timeout_s: float | None) -> None:
        self._kafka = kafka
        self._merger = merger
        self.timeout = timeout_s

    def __iter__(self) -> Merged:
        return self

    def __next__(self) -> Message:
        found = self.get_many(1, self.timeout)
        if not found:
            raise StopIteration
        return found[0]

    def get_many(self, max: int = 100, timeout: float | None = None) -> list[Message]:  # noqa: A002
        """Up to so many that are there, at least one unless none comes within `timeout`."""
        deadline_ms = until_ms(self._kafka.now_ms(), timeout)
        return list(map(received, self._kafka.run(self._merger.take(max, deadline_ms))))

    @property
    def position(self) -> str:
        """Of the last message: `start` there to go on behind it, with any client."""
        return str(self._merger.position)

    def close(self) -> None:
        self._merger.close()


class Transaction:
    def __init__(self, kafka: KafkaClient, session: Session, timeout_s: float) -> None:
        self._kafka = kafka
        self._session = session
        self._core = TransactionCore(session, int(timeout_s * 1000))

    def __enter__(self) -> Transaction:
        self._kafka.run(self._core.begin())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._kafka.run(self._core.commit() if error is None else self._core.abort())
        finally:
            self._core.abandon([])

    def put(
        self,
        topic: str,
        message: Body,
        key: bytes | str | None = None,
        headers: HeaderPairs | None = None,
    ) -> str:
        """The message's id. It is safe, and seen, when the transaction is committed."""
        out = self._session.outgoing(topic, message, key, headers, None)
        transactor = self._core.transactor
        self._kafka.send(topic, out.value, out.key, out.headers, transactor=transactor)
        return out.id

    def get(self, topic: str, timeout: float | None = None) -> Message | None:
        found = self.get_many(topic, 1, timeout)
        return found[0] if found else None

    def get_many(
        self,
        topic: str,
        max: int = 100,  # noqa: A002
        timeout: float | None = None,
    ) -> list[Message]:
        """Theirs is the transaction's fate: if it isn't committed, they come again."""
        deadline_ms = until_ms(self._kafka.now_ms(), timeout)
        return self._kafka.run(self._core.get_many(topic, max, deadline_ms))
