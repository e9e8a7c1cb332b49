"""`sapwood topic`: list, create, describe, alter and remove topics."""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from sapwood.cli.connect import bootstrap_option, client_for, complete_topic, topic_argument
from sapwood.cli.output import output_option, print_json, print_table, say

if TYPE_CHECKING:
    from sapwood.client import KafkaClient
    from sapwood.client.cluster import Topic


@click.group()
def topic() -> None:
    """List, create, describe, alter and remove topics."""


def _configs(pairs: Sequence[str]) -> dict[str, str]:
    configs = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.UsageError(f"--config {pair}: write it as name=value")
        configs[name] = value
    return configs


config_option = click.option(
    "--config",
    "config_pairs",
    multiple=True,
    metavar="NAME=VALUE",
    help="A configuration, e.g. retention.ms=3600000. May be repeated.",
)


@topic.command("ls")
@click.option("-a", "--all", "show_all", is_flag=True, help="Internal topics, too.")
@output_option
@bootstrap_option
def list_topics(show_all: bool, output: str, bootstrap: str | None) -> None:
    """List the topics."""
    with client_for(bootstrap) as client:
        topics = client.metadata().topics.values()
    rows = [
        (each.name, len(each.partitions), _replication_factor(each), each.is_internal)
        for each in sorted(topics)
        if show_all or not each.is_internal
    ]
    if output == "json":
        names = ("topic", "partitions", "replication_factor", "internal")
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    elif rows:
        print_table(("TOPIC", "PARTITIONS", "REPLICAS"), [row[:3] for row in rows])
    else:
        say("There are no topics: sapwood topic create NAME")


@topic.command("create")
@click.argument("topic")
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    help="How many.  [default: the cluster's num.partitions]",
)
@click.option(
    "--replication-factor",
    type=click.IntRange(min=1),
    help="Copies of each partition.  [default: the cluster's]",
)
@config_option
@bootstrap_option
def create(
    topic: str,
    partitions: int | None,
    replication_factor: int | None,
    config_pairs: Sequence[str],
    bootstrap: str | None,
) -> None:
    """Create a topic."""
    from sapwood.client.admin import NewTopic

    new = NewTopic(topic, partitions or -1, replication_factor or -1, _configs(config_pairs))
    with client_for(bootstrap) as client:
        client.create_topics([new])
    click.echo(f"Created {topic}.")


@topic.command("rm")
@click.argument("topics", nargs=-1, required=True, shell_complete=complete_topic, metavar="TOPIC…")
@click.option("-y", "--yes", is_flag=True, help="Don't ask.")
@bootstrap_option
def remove(topics: Sequence[str], yes: bool, bootstrap: str | None) -> None:
    """Remove topics with all their records."""
    if not yes and sys.stdin.isatty():
        click.confirm(f"Remove {', '.join(topics)} with all records?", abort=True, err=True)
    with client_for(bootstrap) as client:
        for name in topics:
            client.delete_topics([name])
            click.echo(f"Removed {name}.")


@topic.command("alter")
@topic_argument
@click.option("--partitions", type=click.IntRange(min=1), help="The new total; it can only grow.")
@config_option
@click.option(
    "--delete-config",
    "deleted",
    multiple=True,
    metavar="NAME",
    help="Put a configuration back to its default. May be repeated.",
)
@bootstrap_option
def alter(
    topic: str,
    partitions: int | None,
    config_pairs: Sequence[str],
    deleted: Sequence[str],
    bootstrap: str | None,
) -> None:
    """Change a topic's configuration, or add partitions."""
    from sapwood.client.admin import ResourceKind

    changes: dict[str, str | None] = {**_configs(config_pairs), **dict.fromkeys(deleted)}
    if not changes and partitions is None:
        raise click.UsageError("nothing to alter: give --partitions, --config or --delete-config")
    with client_for(bootstrap) as client:
        if changes:
            client.alter_configs(ResourceKind.TOPIC, topic, changes)
        if partitions is not None:
            client.create_partitions({topic: partitions})
    click.echo(f"Altered {topic}.")


@topic.command("describe")
@topic_argument
@output_option
@bootstrap_option
def describe(topic: str, output: str, bootstrap: str | None) -> None:
    """Show a topic's partitions, leaders, offsets and configuration."""
    with client_for(bootstrap) as client:
        found = _description(client, topic)
    if output == "json":
        print_json(found)
        return
    print_table(
        ("PARTITION", "LEADER", "EPOCH", "REPLICAS", "IN SYNC", "START", "END", "RECORDS"),
        [
            (
                each["partition"],
                each["leader"],
                each["leader_epoch"],
                ",".join(map(str, each["replicas"])),
                ",".join(map(str, each["in_sync"])),
                each["start_offset"],
                each["end_offset"],
                _difference(each["end_offset"], each["start_offset"]),
            )
            for each in found["partitions"]
        ],
    )
    if found["configs"]:
        click.echo()
        print_table(("CONFIG", "VALUE"), list(found["configs"].items()))


def _description(client: KafkaClient, name: str) -> dict[str, Any]:
    from sapwood.client.admin import ConfigSource, ResourceKind
    from sapwood.client.offsets import EARLIEST, LATEST

    described = existing_topic(client, name)
    configs = client.describe_configs(ResourceKind.TOPIC, name)
    # A partition without a leader has no offsets to show, but the others have.
    led = [(name, number) for number in described.led_partitions]
    starts = client.list_offsets(dict.fromkeys(led, EARLIEST))
    ends = client.list_offsets(dict.fromkeys(led, LATEST))
    return {
        "topic": name,
        "topic_id": base64.urlsafe_b64encode(described.topic_id).decode().rstrip("="),
        "partitions": [
            {
                "partition": each.partition,
                "leader": each.leader if each.leader >= 0 else None,
                "leader_epoch": each.leader_epoch,
                "replicas": list(each.replicas),
                "in_sync": list(each.in_sync),
                "offline": list(each.offline),
                "start_offset": starts[name, each.partition].offset if each.leader >= 0 else None,
                "end_offset": ends[name, each.partition].offset if each.leader >= 0 else None,
            }
            for each in described.partitions.values()
        ],
        "configs": {
            entry.name: entry.value
            for entry in sorted(configs.values())
            if entry.source == ConfigSource.TOPIC
        },
    }


def existing_topic(client: KafkaClient, name: str) -> Topic:
    """The topic, or an error that doesn't make people wait for it to appear."""
    from sapwood.client import ErrorCode, KafkaError
    from sapwood.client.errors import error_for

    found = client.metadata([name]).topics.get(name)
    if found is None or found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"there is no topic {name}: create it with `sapwood topic create {name}`, "
            "or see `sapwood topic ls`",
        )
    if found.error_code:
        raise error_for(found.error_code, f"topic {name}")
    return found


def _replication_factor(topic: Topic) -> int:
    return max((len(each.replicas) for each in topic.partitions.values()), default=0)


def _difference(end: int | None, start: int | None) -> int | None:
    return None if end is None or start is None else end - start
