"""`AsyncClient`: put and get, exactly once, for programs with an event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterable, Sequence
from types import TracebackType
from typing import Any, Literal

from sapwood.client.aio import AsyncDelivery, AsyncKafkaClient
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


class AsyncPut:
    """A message on its way: await it for what is known of it once it is safe."""

    __slots__ = ("_delivery", "id")

    def __init__(self, message_id: str, delivery: AsyncDelivery) -> None:
        self.id = message_id
        self._delivery = delivery

    def __await__(self) -> Generator[Any, None, Stored]:
        return Stored(self.id, *(yield from self._delivery.__await__()))


class AsyncClient:
    """The asyncio twin of `sapwood.Client`: the same calls, the same promises, awaited.

    For one event loop. A get that is cancelled loses nothing: what it had taken is returned by the
    next one.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        id: str | None = None,  # noqa: A002
        *,
        receipts: bool = False,
        **options: Any,
    ) -> None:
        options = {"client_id": id or "sapwood", "isolation_level": READ_COMMITTED, **options}
        self._kafka = AsyncKafkaClient(bootstrap, **options)
        clocks = self._kafka.now_ms, self._kafka.wall_clock_ms
        self._session = Session(self._kafka.core, *clocks, id, receipts=receipts)

    @property
    def id(self) -> str:
        """Of this subscriber, and the sender of what it puts; a random one if none was given."""
        return self._session.sender

    async def __aenter__(self) -> AsyncClient:
        await self._kafka.connect()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.flush()
        await self.close()

    async def close(self) -> None:
        """Subscriptions stay; what was put without waiting and isn't flushed may be lost."""
        await self._kafka.run(self._session.close())
        await self._kafka.close()

    # Putting

    async def put(
        self,
        topic: str,
        message: Body,
        key: bytes | str | None = None,
        headers: HeaderPairs | None = None,
        id: str | None = None,  # noqa: A002
    ) -> Stored:
        """As `Client.put`."""
        return await (await self.put_nowait(topic, message, key, headers, id))

    async def put_many(
        self,
        topic: str,
        messages: Iterable[Body],
        key: bytes | str | None = None,
        headers: HeaderPairs | None = None,
        ids: Iterable[str] | None = None,
    ) -> list[Stored]:
        """As `Client.put_many`."""
        ids = None if ids is None else iter(ids)
        puts = [
            await self.put_nowait(topic, each, key, headers, None if ids is None else next(ids))
            for each in messages
        ]
        return [await each for each in puts]

    async def put_nowait(
        self,
        topic: str,
        message: Body,
        key: bytes | str | None = None,
        headers: HeaderPairs | None = None,
        id: str | None = None,  # noqa: A002
    ) -> AsyncPut:
        """As `Client.put_nowait`: returns when the message is accepted, not when it is safe."""
        out = self._session.outgoing(topic, message, key, headers, id)
        delivery = await self._kafka.send(
            topic, out.value, out.key, out.headers, message_key=out.message_key
        )
        return AsyncPut(out.id, delivery)

    async def flush(self) -> None:
        """Until everything put so far is safe or has failed."""
        await self._kafka.flush()

    # Getting

    async def subscribe(self, topic: str, start: Start = "now") -> bool:
        """As `Client.subscribe`."""
        return await self._kafka.run(self._session.subscribe(topic, start))

    async def unsubscribe(self, topic: str) -> None:
        """As `Client.unsubscribe`."""
        await self._kafka.run(self._session.unsubscribe(topic))

    async def get(
        self,
        topic: str,
        timeout: float | None = None,  # noqa: ASYNC109
        *,
        ack: AckMode = "auto",
        ack_timeout: float = 30.0,
    ) -> Message | None:
        """As `Client.get`."""
        found = await self.get_many(topic, 1, timeout, ack=ack, ack_timeout=ack_timeout)
        return found[0] if found else None

    async def get_many(
        self,
        topic: str,
        max: int = 100,  # noqa: A002
        timeout: float | None = None,  # noqa: ASYNC109
        *,
        ack: AckMode = "auto",
        ack_timeout: float = 30.0,
    ) -> list[Message]:
        """As `Client.get_many`."""
        check_ack_mode(ack)
        if ack == "auto":
            return await self._kafka.run(self._session.get_many(topic, max, timeout))
        return await self._kafka.run(
            self._session.lend(topic, max, timeout, ack_timeout, self._acknowledge)
        )

    async def messages(
        self,
        topic: str,
        timeout: float | None = None,  # noqa: ASYNC109
        *,
        ack: AckMode = "auto",
        ack_timeout: float = 30.0,
    ) -> AsyncIterator[Message]:
        """As `Client.messages`."""
        while True:
            message = await self.get(topic, timeout, ack=ack, ack_timeout=ack_timeout)
            if message is None:
                return
            yield message

    async def pending(self, topic: str) -> list[Pending]:
        """As `Client.pending`."""
        return await self._kafka.run(self._session.pending(topic))

    async def merged(
        self,
        *topics: str,
        start: MergeStart | str = "now",
        timeout: float | None = None,  # noqa: ASYNC109
        stop: Literal["now"] | None = None,
    ) -> AsyncMerged:
        """As `Client.merged`: it has started when this returns."""
        procedure = self._session.merge(topics, start, stops=stop == "now")
        return AsyncMerged(self._kafka, await self._kafka.run(procedure), timeout)

    def transaction(self, timeout: float = 60.0) -> AsyncTransaction:
        """As `Client.transaction`, with `async with`."""
        return AsyncTransaction(self._kafka, self._session, timeout)

    async def _acknowledge(self, message: Message) -> None:
        await self._kafka.run(self._session.acknowledge(message))


class AsyncMerged:
    """An asynchronous iterator of messages in the merged order."""

    def __init__(self, kafka: AsyncKafkaClient, merger: Merger, timeout_s: float | None) -> None:
        self._kafka = kafka
        self._merger = merger
        self.timeout = timeout_s

    def __aiter__(self) -> AsyncMerged:
        return self

    async def __anext__(self) -> Message:
        found = await self.get_many(1, self.timeout)
        if not found:
            raise StopAsyncIteration
        return found[0]

    async def get_many(
        self,
        max: int = 100,  # noqa: A002
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> list[Message]:
        """As `Merged.get_many`."""
        deadline_ms = until_ms(self._kafka.now_ms(), timeout)
        return list(map(received, await self._kafka.run(self._merger.take(max, deadline_ms))))

    @property
    def position(self) -> str:
        """Of the last message: `start` there to go on behind it, with any client."""
        return str(self._merger.position)

    def close(self) -> None:
        self._merger.close()
        self._kafka.schedule()


class AsyncTransaction:
    def __init__(self, kafka: AsyncKafkaClient, session: Session, timeout_s: float) -> None:
        self._kafka = kafka
        self._session = session
        self._core = TransactionCore(session, int(timeout_s * 1000))

    async def __aenter__(self) -> AsyncTransaction:
        await self._kafka.run(self._core.begin())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self._kafka.run(self._core.commit() if error is None else self._core.abort())
        finally:
            self._core.abandon([])

    async def put(
        self,
        topic: str,
        message: Body,
        key: bytes | str | None = None,
        headers: HeaderPairs | None = None,
    ) -> str:
        """The message's id. It is safe, and seen, when the transaction is committed."""
        out = self._session.outgoing(topic, message, key, headers, None)
        transactor = self._core.transactor
        await self._kafka.send(topic, out.value, out.key, out.headers, transactor=transactor)
        return out.id

    async def get(
        self,
        topic: str,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Message | None:
        found = await self.get_many(topic, 1, timeout)
        return found[0] if found else None

    async def get_many(
        self,
        topic: str,
        max: int = 100,  # noqa: A002
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> list[Message]:
        """Theirs is the transaction's fate: if it isn't committed, they come again."""
        deadline_ms = until_ms(self._kafka.now_ms(), timeout)
        return await self._kafka.run(self._core.get_many(topic, max, deadline_ms))
