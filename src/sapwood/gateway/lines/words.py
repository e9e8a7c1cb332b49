"""Lines as they are written: commands in, results and messages out. Pure."""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from sapwood.client import Message
from sapwood.gateway.words import ClientName, MessageId, TopicName

LARGEST_LINE_BYTES = 1 << 20

GREETING = "[RESULT] OK"
OK = "[RESULT] OK"
QUEUED = "[RESULT] QUEUED"

_LINE = re.compile(r"\[([A-Z_]+)\]\s*(.*)", re.DOTALL)


class InvalidLine(Exception):
    """Not a line of this protocol; says what one looks like."""


class Command(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    pass


class User(Command):
    name: ClientName


class Subscribe(Command):
    topic: TopicName
    durable: bool = False


class Unsubscribe(Command):
    topic: TopicName


class Send(Command):
    topic: TopicName
    message: Annotated[str, Meta(max_length=LARGEST_LINE_BYTES)]
    id: MessageId | None = None


class Ack(Command):
    id: MessageId


class Port(Command):
    port: Annotated[int, Meta(ge=1, le=65535)]
    host: Annotated[str, Meta(min_length=1, max_length=253)] | None = None
    """Where the broker is; by default where it connects from."""
    secret: Annotated[str, Meta(max_length=1000)] = ""
    """The cluster's, as its file holds it."""


class Help(Command):
    pass


class Quit(Command):
    pass


COMMANDS: dict[str, tuple[type[Command], str]] = {
    "USER": (User, 'say who you are: {"name": "ann"}'),
    "SUBSCRIBE": (
        Subscribe,
        'get what is sent to a topic: {"topic": "news", "durable": false}; durable: what was '
        "missed, too, and again until it is acknowledged",
    ),
    "UNSUBSCRIBE": (Unsubscribe, 'end that: {"topic": "news"}'),
    "SEND": (Send, 'send a message: {"topic": "news", "message": "hello"}'),
    "ACK": (Ack, 'acknowledge a message of a durable subscription: {"id": "…"}'),
    "PORT": (
        Port,
        'for brokers: be confirmed as a child of this node: {"port": 9192, "secret": "…"}',
    ),
    "HELP": (Help, "show this: {}"),
    "QUIT": (Quit, "end the connection: {}"),
}


def read(line: str) -> Command:
    found = _LINE.fullmatch(line.strip())
    if found is None:
        raise InvalidLine('a line is [COMMAND] {"key": value}; [HELP] {} lists the commands')
    name, fields = found.groups()
    if name not in COMMANDS:
        raise InvalidLine(f"there is no command {name[:100]}; [HELP] {{}} lists those there are")
    kind, summary = COMMANDS[name]
    try:
        return msgspec.json.decode(fields or "{}", type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidLine(f"{name}: {error}; {summary}") from error


def failed(code: str, message: str) -> str:
    return f"[RESULT] ERROR {_json({'code': code, 'message': message})}"


def new_message(found: Message) -> str:
    fields = {
        "id": found.id,
        "topic": found.topic,
        "user": found.sender,
        "message": (found.value or b"").decode(errors="replace"),
        "timestamp": found.timestamp,
    }
    return f"[NEW_MESSAGE] {_json(fields)}"


def redirect(host: str, port: int) -> str:
    return f"[REDIRECT] {_json({'host': host, 'port': port})}"


def tree_changed(change: bytes) -> str:
    return f"[TREE] {change.decode()}"


def help_lines() -> list[str]:
    return [f"[HELP] {name}: {summary}" for name, (_, summary) in COMMANDS.items()]


def _json(fields: dict[str, Any]) -> str:
    """One line, whatever is in it."""
    return msgspec.json.encode(fields).decode()
