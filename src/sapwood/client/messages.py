"""Messages as `put` sends and `get` returns them: Kafka records with an id and a sender."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sapwood.client.batches import Identity, MessageKey
from sapwood.client.fetcher import ConsumedRecord

Headers = Sequence[tuple[str, bytes | None]]

ID_HEADER = "sapwood-id"
SENDER_HEADER = "sapwood-sender"
_OURS = (ID_HEADER, SENDER_HEADER)

# Producer ids from here on are message ids in disguise; coordinators give out smaller ones.
_FIRST_KEYED_PRODUCER = 2**62


@dataclass(frozen=True, slots=True)
class Message:
    """What a subscriber gets."""

    id: str
    topic: str
    partition: int
    offset: int
    timestamp: int  # milliseconds since 1970
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    value: bytes | None
    sender: str | None
    _acknowledge: Callable[[Message], Any] | None = field(default=None, repr=False, compare=False)

    @property
    def text(self) -> str:
        """The value as text."""
        return (self.value or b"").decode()

    def ack(self) -> Any:
        """Say that this message, got with `ack="manual"`, is dealt with; durable on return.

        In an AsyncClient, await it. NotAcknowledged if by now another process with this
        subscriber's id has the message's partition: then the message has come again there.
        """
        if self._acknowledge is None:
            raise RuntimeError('this message needs no ack(): only those got with ack="manual" do')
        return self._acknowledge(self)


class Stored(NamedTuple):
    """What is known of a message that is safe."""

    id: str
    topic: str
    partition: int
    offset: int  # of the original, if this was a repeat
    timestamp: int


class Outgoing(NamedTuple):
    """A message in the form in which it is sent."""

    id: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    message_key: MessageKey | None


def outgoing(
    topic: str,
    message: bytes | str | None,
    key: bytes | str | None,
    headers: Mapping[str, bytes | str] | Headers | None,
    given_id: str | None,
    *,
    sender: str,
    fresh_id: str,
) -> Outgoing:
    """The sender is the default key: what one sender puts into a topic stays in order."""
    message_id = fresh_id if given_id is None else given_id
    if not message_id:
        raise ValueError("a message's id must not be empty")
    pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
    marked: list[tuple[str, bytes | None]] = [
        (ID_HEADER, message_id.encode()),
        (SENDER_HEADER, sender.encode()),
        *((name, _bytes(value)) for name, value in pairs),
    ]
    return Outgoing(
        message_id,
        _bytes(sender if key is None else key),
        _bytes(message),
        marked,
        None if given_id is None else message_key(topic, given_id),
    )


def message_key(topic: str, message_id: str) -> MessageKey:
    """The numbers under which a log recognises a message that it holds already.

    93 bits of a hash stand for the id. Two ids that share the first 62 and not the rest are told
    apart by the log, and refused; to share all of them takes some 10^14 messages.
    """
    digest = hashlib.sha256(f"{topic}\0{message_id}".encode()).digest()
    producer_id = _FIRST_KEYED_PRODUCER | int.from_bytes(digest[:8], "big") >> 2
    return MessageKey(Identity(producer_id, 0), int.from_bytes(digest[8:12], "big") >> 1)


def received(
    record: ConsumedRecord, acknowledge: Callable[[Message], Any] | None = None
) -> Message:
    """A record of another client has neither id nor sender: its place in the log is its id."""
    ours = {name: value.decode(errors="replace") for name, value in record.headers
            if name in _OURS and value is not None}  # fmt: skip
    return Message(
        ours.get(ID_HEADER, f"{record.topic}-{record.partition}-{record.offset}"),
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        record.key,
        tuple(each for each in record.headers if each[0] not in _OURS),
        record.value,
        ours.get(SENDER_HEADER),
        acknowledge,
    )


def _bytes(content: bytes | str | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content
