"""`sapwood put`: messages with an id each, into one topic or several, safe when their ids show."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sapwood.cli.connect import bootstrap_option, complete_topic, messenger_for, topic_argument
from sapwood.cli.logs import log_level_option
from sapwood.cli.reading import header_option, headers_of, lines_of, opened

if TYPE_CHECKING:
    from sapwood.client import Stored
    from sapwood.client.sync_client import Put

_log = logging.getLogger("sapwood.put")

_MOST_UNDERWAY = 1000


@click.command()
@topic_argument
@click.argument("messages", nargs=-1, required=True, metavar="MESSAGE…")
@click.option(
    "-t",
    "--to",
    "further_topics",
    multiple=True,
    metavar="TOPIC",
    shell_complete=complete_topic,
    help="Put each message into this topic, too. May be repeated.",
)
@click.option(
    "--id",
    "message_id",
    help="The message's id: if the topic has it already, it isn't stored again.  "
    "[default: a new one for each]",
)
@click.option(
    "-k",
    "--key",
    help="What has the same key stays in order.  [default: the --sender, else the --id]",
)
@header_option
@click.option("--sender", help="Who puts it.  [default: a new name]")
@click.option("-J", "--json", "as_json", is_flag=True, help="One JSON object per line.")
@log_level_option
@bootstrap_option
def put(
    topic: str,
    messages: Sequence[str],
    further_topics: Sequence[str],
    message_id: str | None,
    key: str | None,
    header_pairs: Sequence[str],
    sender: str | None,
    as_json: bool,
    bootstrap: str | None,
) -> None:
    """Put messages into topics; each MESSAGE - stands for the lines of standard input.

    A line with its id and its place is printed for each message when it is safe: on disk, on most
    of the replicas. If it fails, repeat the same command with --id, and nothing is stored twice.

    \b
    sapwood put orders 'three apples' --id order-17
    tail -f events | sapwood put events - -t archive --sender web-3
    """
    topics = list(dict.fromkeys([topic, *further_topics]))
    if message_id == "":
        raise click.UsageError("--id: a message's id must not be empty")
    if message_id is not None and (len(messages) > 1 or "-" in messages):
        raise click.UsageError("--id is for one message: leave it out, and each gets an id")
    headers = headers_of(header_pairs)
    render = _json_line if as_json else _line
    with messenger_for(bootstrap, sender) as client:
        underway: deque[Put] = deque()

        def settle(most: int = 0) -> None:
            while len(underway) > most:
                click.echo(render(underway.popleft().wait()))

        count = 0
        for message in _bodies(messages, settle):
            for each in topics:
                underway.append(client.put_nowait(each, message, key, headers, message_id))
                _log.debug("put %s into %s", underway[-1].id, each)
            count += 1
            settle(_MOST_UNDERWAY)
        settle()
    _log.info("%d message%s safe in %s", count, " is" if count == 1 else "s are", ", ".join(topics))


def _bodies(messages: Sequence[str], before_waiting: Callable[[], None]) -> Iterator[str | bytes]:
    for message in messages:
        if message == "-":
            with opened(Path("-")) as source:
                yield from lines_of(source, before_waiting)
        else:
            yield message


def _line(stored: Stored) -> str:
    return f"{stored.id} {stored.topic} {stored.partition}@{stored.offset}"


def _json_line(stored: Stored) -> str:
    return json.dumps(stored._asdict(), ensure_ascii=False)
