"""`sapwood consume`: print a topic's records, in kcat's manners."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import click

from sapwood.cli.connect import bootstrap_option, client_for, complete_topic
from sapwood.cli.formats import FormatError, Render, json_line, line_format
from sapwood.cli.output import say
from sapwood.cli.topic import existing_topic

if TYPE_CHECKING:
    from sapwood.client import KafkaClient
    from sapwood.client.cluster import TopicPartition
    from sapwood.client.fetcher import ConsumedRecord

MERGED_AT_ONCE = 500


class Range(NamedTuple):
    """Where to start and, if somewhere, to stop: an offset, a distance from the end, or a time."""

    start: str
    start_time_ms: int | None
    end_time_ms: int | None


@click.command()
@click.argument("topics", nargs=-1, required=True, shell_complete=complete_topic, metavar="TOPIC…")
@click.option(
    "-o",
    "--offset",
    "offsets",
    multiple=True,
    metavar="OFFSET",
    help="beginning, end, 5, -5 (from the end), s@MS to start and e@MS to stop at a time "
    "in milliseconds; with --merge beginning, end, or a position.  [default: beginning]",
)
@click.option(
    "-p",
    "--partition",
    "partitions",
    type=click.IntRange(min=0),
    multiple=True,
    help="May be repeated.  [default: all]",
)
@click.option("-c", "--count", type=click.IntRange(min=1), help="Stop after so many records.")
@click.option(
    "-f",
    "--format",
    "template",
    help=r"%t topic, %p partition, %o offset, %k key, %s value, %T timestamp, %h headers, "
    r"%K and %S sizes, %%, \n, \t.",
)
@click.option("-J", "--json", "as_json", is_flag=True, help="One JSON object per line.")
@click.option("-e", "--exit", "exits", is_flag=True, help="Stop at the end instead of waiting.")
@click.option(
    "--merge",
    is_flag=True,
    help="All topics in one order, the same for every reader: that in which the cluster stored "
    "them, by its own clock. Committed records only.",
)
@click.option("-q", "--quiet", is_flag=True, help="Say nothing unless something goes wrong.")
@bootstrap_option
def consume(
    topics: Sequence[str],
    offsets: Sequence[str],
    partitions: Sequence[int],
    count: int | None,
    template: str | None,
    as_json: bool,
    exits: bool,
    merge: bool,
    quiet: bool,
    bootstrap: str | None,
) -> None:
    """Print the records of a topic, or of several in one order.

    \b
    sapwood consume greetings -o -5 -e
    sapwood consume greetings -f '%p@%o %k: %s\\n'
    sapwood consume --merge orders payments
    """
    if as_json and template is not None:
        raise click.UsageError("-J and -f exclude each other")
    if merge and partitions:
        raise click.UsageError("--merge takes topics as a whole: leave -p out")
    if len(topics) > 1 and not merge:
        raise click.UsageError("several topics need an order: add --merge")
    wanted = _merge_start(offsets) if merge else _range(offsets)
    try:
        render = None if as_json else line_format(template if template is not None else r"%s\n")
    except FormatError as error:
        raise click.UsageError(str(error)) from error
    printed = 0
    topic = topics[0]
    try:
        if isinstance(wanted, str):
            _print_merged(bootstrap, topics, wanted, exits, render, count, quiet)
            return
        with client_for(bootstrap) as client:
            described = existing_topic(client, topic)
            chosen = partitions or list(described.partitions)
            for number in chosen:
                if number not in described.partitions:
                    raise click.UsageError(
                        f"topic {topic} has no partition {number}: it has "
                        f"{len(described.partitions)}, counted from 0"
                    )
            leaders = {number: each.leader for number, each in described.partitions.items()}
            keys = [(topic, number) for number in chosen]
            positions, stops = _bounds(client, keys, wanted, exits)

            def as_json_line(record: ConsumedRecord) -> bytes:
                return json_line(record, leaders[record.partition])

            printed = _print(client, positions, stops, render or as_json_line, count)
    except KeyboardInterrupt:
        return  # the usual way to end it
    if not quiet:
        say(f"Read {printed} record{'' if printed == 1 else 's'} of {topic}.")


def _merge_start(offsets: Sequence[str]) -> str:
    if len(offsets) > 1:
        raise click.UsageError("--merge starts at one place: give -o once")
    given = offsets[0] if offsets else "beginning"
    return {"beginning": "earliest", "end": "now"}.get(given, given)


def _print_merged(
    bootstrap: str | None,
    topics: Sequence[str],
    start: str,
    exits: bool,
    render: Render | None,
    count: int | None,
    quiet: bool,
) -> None:
    from sapwood.client.config import READ_COMMITTED
    from sapwood.client.merging import Merger

    printed = 0
    with client_for(bootstrap, isolation_level=READ_COMMITTED) as client:
        described = {topic: existing_topic(client, topic).partitions for topic in topics}
        try:
            merger = Merger(client.core, client.now_ms, topics, start, stops=exits)
        except ValueError as error:
            raise click.UsageError(f"-o: {error}") from error

        def as_json_line(record: ConsumedRecord) -> bytes:
            known = described[record.topic].get(record.partition)
            return json_line(record, -1 if known is None else known.leader)

        line = render or as_json_line
        client.run(merger.begin())
        try:
            with open(sys.stdout.fileno(), "wb", closefd=False) as out:
                while not merger.is_at_end and printed != count:
                    room = MERGED_AT_ONCE if count is None else count - printed
                    found = client.run(merger.take(min(room, MERGED_AT_ONCE), float("inf")))
                    out.write(b"".join(map(line, found)))
                    out.flush()
                    printed += len(found)
        finally:
            if not quiet:
                on = f" To go on: -o {merger.position}" if merger.position.time >= 0 else ""
                names = ", ".join(topics)
                say(f"Read {printed} record{'' if printed == 1 else 's'} of {names}.{on}")


def _print(
    client: KafkaClient,
    positions: dict[TopicPartition, int],
    stops: dict[TopicPartition, int] | None,
    render: Callable[[ConsumedRecord], bytes],
    count: int | None,
) -> int:
    from sapwood.client.fetcher import read_records

    printed = 0
    # A stream of our own: Python's may be unbuffered, and then writes only part of what it gets.
    with open(sys.stdout.fileno(), "wb", closefd=False) as out:
        for chunk in client.fetch(positions, stop_at=stops):
            room = None if count is None else count - printed
            lines = [render(record) for record in islice(read_records(chunk), room)]
            out.write(b"".join(lines))
            out.flush()
            printed += len(lines)
            if printed == count:
                break
    return printed


def _range(offsets: Sequence[str]) -> Range:
    start, start_time_ms, end_time_ms = "beginning", None, None
    for text in offsets:
        if text.startswith(("s@", "e@")):
            if not text[2:].isdigit():
                raise click.UsageError(f"-o {text}: the time is a number of milliseconds")
            if text.startswith("s@"):
                start_time_ms = int(text[2:])
            else:
                end_time_ms = int(text[2:])
        elif text in ("beginning", "end") or text.removeprefix("-").isdigit():
            start = text
        else:
            raise click.UsageError(f"-o {text}: use beginning, end, 5, -5, s@MS or e@MS")
    return Range(start, start_time_ms, end_time_ms)


def _bounds(
    client: KafkaClient, keys: Sequence[TopicPartition], wanted: Range, exits: bool
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int] | None]:
    from sapwood.client.offsets import EARLIEST, LATEST

    def look_up(when: int) -> dict[TopicPartition, int]:
        found = client.list_offsets(dict.fromkeys(keys, when))
        # No record is that young: what comes next will be.
        missing = [key for key, each in found.items() if each.offset < 0]
        ends = client.list_offsets(dict.fromkeys(missing, LATEST))
        return {key: ends.get(key, each).offset for key, each in found.items()}

    if wanted.start_time_ms is not None:
        positions = look_up(wanted.start_time_ms)
    elif wanted.start == "beginning":
        positions = dict.fromkeys(keys, EARLIEST)
    elif wanted.start == "end":
        positions = look_up(LATEST)
    elif wanted.start.startswith("-"):
        starts = look_up(EARLIEST)
        distance = int(wanted.start)
        positions = {key: max(starts[key], end + distance) for key, end in look_up(LATEST).items()}
    else:
        positions = dict.fromkeys(keys, int(wanted.start))
    stops = look_up(LATEST) if exits else None
    if wanted.end_time_ms is not None:
        by_time = look_up(wanted.end_time_ms)
        stops = {key: min(by_time[key], (stops or by_time)[key]) for key in keys}
    return positions, stops
