"""One connection's state: who it is, what it listens to, what it has yet to acknowledge."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from sapwood.client import (
    AsyncKafkaClient,
    ClientClosed,
    KafkaError,
    MalformedMessage,
    Message,
    NotAcknowledged,
    NotSubscribed,
    PositionLost,
)
from sapwood.client.fetcher import Unreadable
from sapwood.client.messages import outgoing
from sapwood.client.subscriber import Subscriber
from sapwood.gateway.lines import words
from sapwood.gateway.lines.brokers import Child
from sapwood.gateway.lines.feed import Feed, Listener
from sapwood.gateway.sending import Sender, check_is_for_clients

logger = logging.getLogger("sapwood.gateway")

NOBODY = "anonymous"
MOST_SUBSCRIPTIONS = 100
MOST_UNACKNOWLEDGED = 32
AGAIN_AFTER_MS = 30_000.0
WAIT_MS = 5_000.0
MOST_UNREAD_BYTES = 4 << 20


class Peer(Protocol):
    """The other end of a connection."""

    @property
    def unread_bytes(self) -> int:
        """What was written and isn't taken yet."""

    def write(self, line: str) -> None: ...

    async def drained(self) -> None:
        """Until there is room again."""

    def close(self) -> None: ...


class Refused(Exception):
    """A command that can't be carried out."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.line = words.failed(code, message)


class Durable:
    """A durable subscription in use: lends a few messages at a time until they are acknowledged."""

    def __init__(self, kafka: AsyncKafkaClient, subscriber: Subscriber, peer: Peer) -> None:
        self._kafka = kafka
        self._subscriber = subscriber
        self._peer = peer
        self._out: dict[str, Message] = {}
        self._room = asyncio.Event()
        self.task = asyncio.ensure_future(self._run())

    async def acknowledge(self, message_id: str) -> bool:
        """Whether it was one of this subscription's."""
        message = self._out.get(message_id)
        if message is None:
            return False
        await self._kafka.run(self._subscriber.acknowledge(message))
        self._out.pop(message_id, None)
        self._room.set()
        return True

    async def close(self) -> None:
        await self._stop()
        await self._kafka.run(self._subscriber.close())

    async def unsubscribe(self) -> None:
        await self._stop()
        await self._kafka.run(self._subscriber.unsubscribe())

    async def _stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await self._lend()
            except (PositionLost, MalformedMessage) as error:
                self._peer.write(words.failed("MESSAGES_LOST", str(error)))
            except NotSubscribed as error:
                self._peer.write(words.failed("NOT_SUBSCRIBED", str(error)))
                return
            except KafkaError as error:
                if not error.code.retriable:
                    self._peer.write(words.failed(error.code.name, error.message))
                    return
                logger.warning("a durable subscription waits: %s", error)
                await asyncio.sleep(1)

    async def _lend(self) -> None:
        await self._peer.drained()
        while len(self._out) >= MOST_UNACKNOWLEDGED:
            self._room.clear()
            # What isn't acknowledged in time comes again; nothing else does meanwhile.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._room.wait(), AGAIN_AFTER_MS / 1000)
                continue
            self._out.clear()
        lent = await self._kafka.run(
            self._subscriber.lend(
                MOST_UNACKNOWLEDGED - len(self._out),
                self._kafka.now_ms() + WAIT_MS,
                AGAIN_AFTER_MS,
                lambda _: None,
            )
        )
        for message in lent:
            # What isn't acknowledged comes again, but isn't heaped up for one who doesn't read.
            await self._peer.drained()
            self._out[message.id] = message
            self._peer.write(words.new_message(message))


class Session:
    def __init__(
        self, kafka: AsyncKafkaClient, sender: Sender, feed: Feed, peer: Peer, child: Child
    ) -> None:
        self._kafka = kafka
        self._sender = sender
        self._feed = feed
        self._peer = peer
        self._child = child
        self._user = NOBODY
        self._listeners: dict[str, Listener] = {}
        self._durables: dict[str, Durable] = {}
        self.is_over = False
        self._handlers: dict[type[words.Command], Callable[[Any], Awaitable[str | None]]] = {
            words.User: self._become,
            words.Subscribe: self._subscribe,
            words.Unsubscribe: self._unsubscribe,
            words.Send: self._send,
            words.Ack: self._acknowledge,
            words.Port: child.confirm,
            words.Help: self._help,
            words.Quit: self._quit,
        }

    @property
    def is_client(self) -> bool:
        return not self._child.is_broker

    def greet(self, elsewhere: tuple[str, int] | None) -> None:
        """And say where there are fewer clients; who can't follow is served here."""
        self._peer.write(words.GREETING)
        if elsewhere is not None:
            self._peer.write(words.redirect(*elsewhere))

    async def handle(self, line: str) -> None:
        """One line, answered."""
        try:
            command = words.read(line)
            answer = await self._handlers[type(command)](command)
        except words.InvalidLine as error:
            self._peer.write(words.failed("INVALID_MESSAGE", str(error)))
        except Refused as error:
            self._peer.write(error.line)
        except KafkaError as error:
            self._peer.write(words.failed(error.code.name, error.message or error.code.name))
        except NotAcknowledged as error:
            self._peer.write(words.failed("NOT_ACKNOWLEDGED", str(error)))
        except ClientClosed:
            self._peer.write(words.failed("STOPPING", "the gateway is stopping: ask another one"))
            self.is_over = True
        else:
            self._peer.write(answer or words.OK)

    def refuse(self) -> None:
        self._peer.write(words.failed("TOO_MANY", "too many are connected here: ask another node"))

    def too_long(self) -> None:
        limit = words.LARGEST_LINE_BYTES
        self._peer.write(words.failed("TOO_LARGE", f"a line has {limit} bytes at most"))

    def not_text(self) -> None:
        self._peer.write(words.failed("INVALID_MESSAGE", "a line is text, in UTF-8"))

    async def close(self) -> None:
        for topic, listener in self._listeners.items():
            self._feed.leave(topic, listener)
        for durable in self._durables.values():
            # A gateway that stops cancels this, and waits for no goodbye.
            with contextlib.suppress(KafkaError, ClientClosed, asyncio.CancelledError):
                await durable.close()
        await self._child.gone()

    async def _become(self, command: words.User) -> None:
        if self._durables and command.name != self._user:
            raise Refused(
                "IN_USE", f"durable subscriptions are {self._user}'s: open another connection"
            )
        self._user = command.name

    async def _subscribe(self, command: words.Subscribe) -> None:
        topic = command.topic
        if topic in self._listeners or topic in self._durables:
            raise Refused("SUBSCRIBED", f"this connection is subscribed to {topic} already")
        if len(self._listeners) + len(self._durables) >= MOST_SUBSCRIPTIONS:
            raise Refused(
                "TOO_MANY", f"a connection has {MOST_SUBSCRIPTIONS} subscriptions at most"
            )
        if command.durable:
            await self._subscribe_durably(topic)
            return
        listener = self._listeners[topic] = Listener(self._tell_message, self._tell_loss)
        try:
            await self._feed.listen(topic, listener)
        except BaseException:
            del self._listeners[topic]
            raise

    async def _subscribe_durably(self, topic: str) -> None:
        if self._user == NOBODY:
            raise Refused("NO_NAME", 'what is durable is kept by name: [USER] {"name": …} first')
        core, clock = self._kafka.core, self._kafka.now_ms
        subscriber = Subscriber(core, clock, lambda: secrets.token_hex(16), topic, self._user)
        await self._kafka.run(subscriber.subscribe("now"))
        self._durables[topic] = Durable(self._kafka, subscriber, self._peer)

    async def _unsubscribe(self, command: words.Unsubscribe) -> None:
        listener = self._listeners.pop(command.topic, None)
        durable = self._durables.pop(command.topic, None)
        if listener is not None:
            self._feed.leave(command.topic, listener)
        elif durable is not None:
            await durable.unsubscribe()
        else:
            raise Refused("NOT_SUBSCRIBED", f"this connection isn't subscribed to {command.topic}")

    async def _send(self, command: words.Send) -> str | None:
        check_is_for_clients(command.topic)
        message_id = command.id or secrets.token_hex(16)
        out = outgoing(
            command.topic,
            command.message,
            None,
            None,
            command.id,
            sender=self._user,
            fresh_id=message_id,
        )
        _, is_queued = await self._sender.send(
            command.topic, out.id, out.value, out.key, out.headers, known_id=out.message_key
        )
        return words.QUEUED if is_queued else None

    async def _acknowledge(self, command: words.Ack) -> None:
        for durable in self._durables.values():
            if await durable.acknowledge(command.id):
                return
        raise Refused("UNKNOWN_MESSAGE", f"{command.id[:100]} is not out, or is acknowledged")

    async def _help(self, _: words.Help) -> None:
        for line in words.help_lines():
            self._peer.write(line)

    async def _quit(self, _: words.Quit) -> None:
        self.is_over = True

    def _tell_message(self, message: Message) -> None:
        self.tell(words.new_message(message))

    def _tell_loss(self, lost: Unreadable) -> None:
        self.tell(words.failed("MESSAGES_LOST", str(lost)))

    def tell(self, line: str) -> None:
        """What it didn't ask for just now. Nobody is kept waiting by one who doesn't read."""
        if self.is_over:
            return
        if self._peer.unread_bytes > MOST_UNREAD_BYTES:
            self.is_over = True
            self._peer.write(
                words.failed("TOO_SLOW", "messages came faster than they were read: connect again")
            )
            self._peer.close()
            return
        self._peer.write(line)
