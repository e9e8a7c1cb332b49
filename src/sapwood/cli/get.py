"""`sapwood get`: print the messages of a durable subscriber, each once."""

from __future__ import annotations

import json
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from sapwood.cli.connect import bootstrap_option, messenger_for, topic_argument
from sapwood.cli.formats import FormatError, line_format
from sapwood.cli.logs import log_level_option
from sapwood.cli.subscribe import subscriber_option

if TYPE_CHECKING:
    from sapwood.client import Client, Message
    from sapwood.client.session import AckMode

_log = logging.getLogger("sapwood.get")

_ASK_S = 0.5  # how long an interrupt may have to wait


@click.command()
@topic_argument
@subscriber_option
@click.option("--follow", is_flag=True, help="Wait for more instead of stopping at the end.")
@click.option("--max", "most", type=click.IntRange(min=1), help="Stop after so many messages.")
@click.option(
    "--timeout",
    "timeout_s",
    type=float,
    metavar="SECONDS",
    help="Stop when none comes for so long.",
)
@click.option(
    "--ack",
    type=click.Choice(["auto", "manual"]),
    default="auto",
    show_default=True,
    help="auto: acknowledged, then printed, never printed twice. manual: printed, then "
    "acknowledged, never missed.",
)
@click.option(
    "-f",
    "--format",
    "template",
    help="As of `sapwood consume`.  [default: the value and a newline]",
)
@click.option("-J", "--json", "as_json", is_flag=True, help="One JSON object per line.")
@log_level_option
@bootstrap_option
def get(
    topic: str,
    subscriber: str,
    follow: bool,
    most: int | None,
    timeout_s: float | None,
    ack: AckMode,
    template: str | None,
    as_json: bool,
    bootstrap: str | None,
) -> None:
    """Print what a durable subscriber has yet to get.

    Subscribe first. Processes with one id share its messages between them. An interrupt ends it
    between two messages.

    \b
    sapwood subscribe orders --id billing --start earliest
    sapwood get orders --id billing --follow
    """
    if as_json and template is not None:
        raise click.UsageError("-J and -f exclude each other")
    try:
        render = _json_line if as_json else line_format(template or r"%s\n")
    except FormatError as error:
        raise click.UsageError(str(error)) from error
    with (
        messenger_for(bootstrap, subscriber) as client,
        _interruption() as is_interrupted,
        open(sys.stdout.fileno(), "wb", closefd=False) as out,
    ):
        reader = _Reader(client, topic, ack, timeout_s, follow, is_interrupted)
        for message in reader.messages(most):
            out.write(render(message))
            out.flush()
            if ack == "manual":
                _acknowledge(message)
    _log.info("%s got %d of %s", subscriber, reader.count, topic)


class _Reader:
    """Asks again and again, and knows when to stop."""

    def __init__(
        self,
        client: Client,
        topic: str,
        ack: AckMode,
        timeout_s: float | None,
        follow: bool,
        is_interrupted: Callable[[], bool],
    ) -> None:
        self._client = client
        self._topic = topic
        self._ack = ack
        self._timeout_s = timeout_s
        self._follow = follow
        self._is_interrupted = is_interrupted
        self.count = 0

    def messages(self, most: int | None) -> Iterator[Message]:
        waited_s = 0.0
        while not self._is_interrupted() and self.count != most:
            message = self._next()
            if message is not None:
                waited_s = 0.0
                self.count += 1
                yield message
                continue
            waited_s += _ASK_S
            if self._timeout_s is not None and waited_s >= self._timeout_s:
                return
            if not self._follow and not self._is_pending():
                return

    def _next(self) -> Message | None:
        from sapwood.client import PositionLost

        try:
            return self._client.get(self._topic, _ASK_S, ack=self._ack)
        except PositionLost as loss:
            _log.warning("%s", loss)
            return None

    def _is_pending(self) -> bool:
        pending = self._client.pending(self._topic)
        return any(each.lag for each in pending if each.subscriber == self._client.id)


@contextmanager
def _interruption() -> Iterator[Callable[[], bool]]:
    """The first interrupt is noted, so that no message is torn from the hand; the next one ends."""
    noted: list[int] = []

    def note(number: int, _frame: Any) -> None:
        noted.append(number)
        signal.signal(number, signal.default_int_handler)

    before = {each: signal.signal(each, note) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(noted)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _acknowledge(message: Message) -> None:
    from sapwood.client import NotAcknowledged

    try:
        message.ack()
    except NotAcknowledged as error:
        _log.warning("%s", error)


def _json_line(message: Message) -> bytes:
    fields = {
        "id": message.id,
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp,
        "sender": message.sender,
        "key": _text(message.key),
        "headers": {name: _text(value) for name, value in message.headers},
        "value": _text(message.value),
    }
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode(errors="replace")
