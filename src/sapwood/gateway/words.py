"""The words that requests and answers are made of, with their limits; the schemas say the same."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from sapwood.client import Message
from sapwood.gateway.problems import Refused

MAX_PARTITION = 2**31 - 1

TopicName = Annotated[
    str, Meta(min_length=1, max_length=249, pattern=r"^[A-Za-z0-9._-]+$", examples=["orders"])
]
ClientName = Annotated[
    str, Meta(min_length=1, max_length=249, pattern=r"^[A-Za-z0-9._:@-]+$", examples=["till-1"])
]
PartitionNumber = Annotated[int, Meta(ge=0, le=MAX_PARTITION)]
Count = Annotated[int, Meta(ge=0)]
MessageId = Annotated[str, Meta(min_length=1, max_length=1000)]
Encoding = Literal["utf-8", "base64"]


class Query(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Parameters behind the path; what isn't known is refused, so that no typing error is."""


class Body(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    pass


class Answer(msgspec.Struct, kw_only=True):
    http_status: ClassVar[int | None] = None
    """If it isn't the one that its row of the table names."""


class MessageAnswer(Answer):
    """A message. What isn't UTF-8 comes as base64, and `encoding` says so."""

    id: str
    topic: str
    partition: int
    offset: int
    timestamp: int
    key: str | None
    message: str | None
    encoding: Encoding
    producer: str | None
    headers: dict[str, str | None]


def shown(found: Message) -> MessageAnswer:
    message, encoding = _text(found.value)
    return MessageAnswer(
        id=found.id,
        topic=found.topic,
        partition=found.partition,
        offset=found.offset,
        timestamp=found.timestamp,
        key=_text(found.key)[0],
        message=message,
        encoding=encoding,
        producer=found.sender,
        headers={name: _text(value)[0] for name, value in found.headers},
    )


def content(message: str | None, encoding: Encoding) -> bytes | None:
    if message is None:
        return None
    if encoding == "utf-8":
        return message.encode()
    try:
        return base64.b64decode(message, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refused(400, f"message is not base64: {error}") from error


def _text(value: bytes | None) -> tuple[str | None, Encoding]:
    if value is None:
        return None, "utf-8"
    try:
        return value.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(value).decode(), "base64"
