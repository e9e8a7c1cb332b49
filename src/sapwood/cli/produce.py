"""`sapwood produce`: lines from standard input or files become records."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from sapwood.cli.connect import bootstrap_option, client_for, topic_argument
from sapwood.cli.output import progress, say
from sapwood.cli.reading import Header, header_option, headers_of, lines_of, opened, size_of

if TYPE_CHECKING:
    from sapwood.client import KafkaClient
    from sapwood.client.batches import Delivery

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_ACKS = {"all": -1, "-1": -1, "0": 0, "1": 1}
_WHOLE_BYTES = 100 * 1024 * 1024
_BIG_BYTES = 8 * 1024 * 1024  # from here on a bar is worth its place


@click.command()
@topic_argument
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@click.option(
    "-k",
    "--key-separator",
    metavar="SEP",
    help="The key is what stands before the first SEP of a line.",
)
@header_option
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Instead of by key or in turn.")
@click.option("-z", "--compression", type=click.Choice(CODECS), default="none", show_default=True)
@click.option("--acks", type=click.Choice(sorted(_ACKS)), default="all", show_default=True)
@click.option("-Z", "--null", "is_null", is_flag=True, help="An empty key or value means none.")
@click.option("--whole", is_flag=True, help="Each file is one record, not each line.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing unless something goes wrong.")
@bootstrap_option
def produce(
    topic: str,
    files: Sequence[Path],
    key_separator: str | None,
    header_pairs: Sequence[str],
    partition: int | None,
    compression: str,
    acks: str,
    is_null: bool,
    whole: bool,
    quiet: bool,
    bootstrap: str | None,
) -> None:
    """Send lines to a topic: from standard input, or from FILES (- is standard input).

    \b
    echo 'user7:hello' | sapwood produce greetings -k :
    sapwood produce events -H source=import -z zstd events.jsonl
    """
    from sapwood.client import Compression

    sender = _Sender(topic, key_separator, headers_of(header_pairs), partition, is_null)
    options = {"acks": _ACKS[acks], "compression": Compression[compression.upper()]}
    if whole:
        options["max_request_bytes"] = _WHOLE_BYTES  # how much is too much, the topic says
    with client_for(bootstrap, **options) as client:
        for path in files or [Path("-")]:
            with opened(path) as source:
                if whole:
                    sender.send(client, source.read())
                else:
                    _send_lines(client, sender, source, str(path), quiet)
        client.flush()
        sender.check()
    if not quiet:
        say(f"Sent {sender.count} record{'' if sender.count == 1 else 's'} to {topic}.")


class _Sender:
    """Turns lines into records and keeps the promises made for them until they are kept."""

    def __init__(
        self,
        topic: str,
        key_separator: str | None,
        headers: Sequence[Header],
        partition: int | None,
        is_null: bool,
    ) -> None:
        self._topic = topic
        self._separator = key_separator.encode() if key_separator else None
        self._headers = headers
        self._partition = partition
        self._is_null = is_null
        self._pending: deque[Delivery] = deque()
        self.count = 0

    def send(self, client: KafkaClient, line: bytes) -> None:
        key: bytes | None = None
        value: bytes | None = line
        if self._separator is not None and self._separator in line:
            key, _, value = line.partition(self._separator)
        if self._is_null:
            key, value = key or None, value or None
        delivery = client.send(self._topic, value, key, self._headers, self._partition)
        self._pending.append(delivery)
        self.count += 1
        self.check()

    def check(self) -> None:
        """Raise the first failure among those that are settled."""
        while self._pending and self._pending[0].done:
            self._pending.popleft().result()


def _send_lines(
    client: KafkaClient, sender: _Sender, source: BinaryIO, name: str, quiet: bool
) -> None:
    size_bytes = size_of(source)
    is_big = size_bytes is None or size_bytes >= _BIG_BYTES
    is_typed = source.isatty()
    if is_typed and not quiet:
        say("Type lines, each a record; Ctrl-D ends.")
    with progress(name, size_bytes, unit="bytes", quiet=quiet or is_typed or not is_big) as advance:
        for line in lines_of(source, client.flush, advance):
            sender.send(client, line)
