"""`sapwood subscribe`, `unsubscribe`, `pending`: durable subscriptions and what they wait for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import click

from sapwood.cli.connect import bootstrap_option, complete_topic, messenger_for, topic_argument
from sapwood.cli.output import output_option, print_json, print_table, say

if TYPE_CHECKING:
    from sapwood.client import Pending
    from sapwood.client.session import Start

subscriber_option = click.option(
    "--id",
    "subscriber",
    required=True,
    metavar="NAME",
    help="The subscriber: its name is all it is.",
)
_topics_argument = click.argument(
    "topics", nargs=-1, required=True, shell_complete=complete_topic, metavar="TOPIC…"
)


@click.command()
@_topics_argument
@subscriber_option
@click.option(
    "--start",
    type=click.Choice(["now", "earliest"]),
    default="now",
    show_default=True,
    help="With the next message, or with the earliest that is left.",
)
@bootstrap_option
def subscribe(topics: Sequence[str], subscriber: str, start: Start, bootstrap: str | None) -> None:
    """Begin durable subscriptions.

    From now on every message is kept for this subscriber until it has got it, however long it is
    away. A subscription that is there already stays where it is.
    """
    with messenger_for(bootstrap, subscriber) as client:
        for topic in topics:
            is_new = client.subscribe(topic, start)
            words = "is subscribed to" if is_new else "was subscribed already, and stays, to"
            click.echo(f"{subscriber} {words} {topic}.")


@click.command()
@_topics_argument
@subscriber_option
@bootstrap_option
def unsubscribe(topics: Sequence[str], subscriber: str, bootstrap: str | None) -> None:
    """End durable subscriptions; nothing is kept for them any more."""
    with messenger_for(bootstrap, subscriber) as client:
        for topic in topics:
            client.unsubscribe(topic)
            click.echo(f"{subscriber} is no longer subscribed to {topic}.")


@click.command()
@topic_argument
@click.option("-p", "--partitions", "by_partition", is_flag=True, help="One row per partition.")
@output_option
@bootstrap_option
def pending(topic: str, by_partition: bool, output: str, bootstrap: str | None) -> None:
    """Show what durable subscribers have yet to get."""
    with messenger_for(bootstrap) as client:
        found = client.pending(topic)
    if output == "json":
        names = ("partition", "position", "end", "pending")
        print_json(
            [
                {
                    "subscriber": subscriber,
                    "pending": sum(each.lag for each in rows),
                    "partitions": [
                        dict(zip(names, (*each[1:], each.lag), strict=True)) for each in rows
                    ],
                }
                for subscriber, rows in _by_subscriber(found)
            ]
        )
    elif not found:
        say(f"{topic} has no durable subscribers: sapwood subscribe {topic} --id NAME")
    elif by_partition:
        headings = ("SUBSCRIBER", "PARTITION", "POSITION", "END", "PENDING")
        print_table(headings, [(*each, each.lag) for each in found])
    else:
        rows = [(name, sum(each.lag for each in rows)) for name, rows in _by_subscriber(found)]
        print_table(("SUBSCRIBER", "PENDING"), rows)


def _by_subscriber(found: Sequence[Pending]) -> list[tuple[str, list[Pending]]]:
    return [(name, list(rows)) for name, rows in groupby(found, lambda each: each.subscriber)]
