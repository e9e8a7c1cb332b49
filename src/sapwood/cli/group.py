"""`sapwood group`: list, describe, move and remove consumer groups of both protocols."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from sapwood.cli import CommandFailed
from sapwood.cli.connect import PATIENCE_AT_A_PROMPT, bootstrap_option, client_for
from sapwood.cli.output import output_option, print_json, print_table, say

if TYPE_CHECKING:
    from sapwood.client import KafkaClient
    from sapwood.client.cluster import TopicPartition
    from sapwood.client.group_admin import DescribedGroup, ListedGroup


@click.group()
def group() -> None:
    """List, describe, move and remove consumer groups.

    The durable subscription of `alice` to `orders` is a group, too: orders␟alice.
    """


def complete_group(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str]:
    """For the shell: the groups there are; nothing if the cluster doesn't answer at once."""
    try:
        with client_for(context.params.get("bootstrap"), **PATIENCE_AT_A_PROMPT) as client:
            names = [each.group_id for each in _listed(client)]
    except Exception:  # the user is typing: no error is worth interrupting that
        return []
    return [name for name in names if name.startswith(incomplete)]


_group_argument = click.argument("group_id", metavar="GROUP", shell_complete=complete_group)


class Place(NamedTuple):
    """How far a group is in one partition."""

    topic: str
    partition: int
    position: int | None
    end: int | None  # None: the partition is gone, or nobody leads it

    @property
    def lag(self) -> int | None:
        if self.position is None or self.end is None:
            return None
        return max(0, self.end - self.position)


def _listed(client: KafkaClient) -> list[ListedGroup]:
    from sapwood.client.group_admin import list_groups

    return client.run(list_groups(client.core, client.now_ms))


def _described(client: KafkaClient, group_id: str) -> DescribedGroup:
    from sapwood.client.group_admin import describe_group

    found = client.run(describe_group(client.core, client.now_ms, group_id))
    if found is None:
        raise CommandFailed(f"there is no group {group_id}: see `sapwood group ls`")
    return found


def _places(
    client: KafkaClient, groups: Iterable[DescribedGroup]
) -> dict[DescribedGroup, list[Place]]:
    """Where each group is committed, and what else its members own."""
    positions = {each: client.positions(each.group_id) for each in groups}
    keys = {
        each: sorted({key for member in each.members for key in member.owned}.union(committed))
        for each, committed in positions.items()
    }
    ends = _offsets(client, {key for each in keys.values() for key in each}, None)
    return {
        each: [
            Place(
                *key, positions[each][key].offset if key in positions[each] else None, ends.get(key)
            )
            for key in keys[each]
        ]
        for each in keys
    }


def _offsets(
    client: KafkaClient, keys: Iterable[TopicPartition], when: int | None
) -> dict[TopicPartition, int]:
    """Of those partitions that have a leader to ask; by default their ends."""
    from sapwood.client.offsets import LATEST

    keys = list(keys)
    topics = client.metadata(sorted({topic for topic, _ in keys})).topics
    led = [
        (topic, partition)
        for topic, partition in keys
        if topic in topics and partition in topics[topic].led_partitions
    ]
    found = client.list_offsets(dict.fromkeys(led, LATEST if when is None else when))
    return {key: each.offset for key, each in found.items()}


@group.command("ls")
@output_option
@bootstrap_option
def list_all(output: str, bootstrap: str | None) -> None:
    """List the groups, with how far behind they are."""
    from sapwood.client.group_admin import describe_group

    with client_for(bootstrap) as client:
        found = [
            client.run(describe_group(client.core, client.now_ms, each.group_id))
            for each in _listed(client)
        ]
        places = _places(client, [each for each in found if each is not None])
    rows = [
        (each.group_id, each.type, each.state, len(each.members), _total_lag(where))
        for each, where in places.items()
    ]
    if output == "json":
        names = ("group", "type", "state", "members", "lag")
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    elif rows:
        print_table(("GROUP", "TYPE", "STATE", "MEMBERS", "LAG"), rows)
    else:
        say("There are no groups.")


@group.command("describe")
@_group_argument
@output_option
@bootstrap_option
def describe(group_id: str, output: str, bootstrap: str | None) -> None:
    """Show a group's members, positions and lag."""
    with client_for(bootstrap) as client:
        described = _described(client, group_id)
        places = _places(client, [described])[described]
    owners = {key: member for member in described.members for key in member.owned}
    if output == "json":
        print_json(_description(described, places, owners))
        return
    click.echo(
        f"{group_id}: {described.type}, {described.state.lower()}, "
        f"{_members(len(described.members))}, lag {_total_lag(places)}"
    )
    headings = ("TOPIC", "PARTITION", "POSITION", "END", "LAG", "MEMBER", "CLIENT", "HOST")
    rows = []
    for place in places:
        owner = owners.get((place.topic, place.partition))
        who = (None, None, None) if owner is None else owner[:3]
        rows.append((*place, place.lag, *who))
    if rows:
        print_table(headings, rows)


def _description(
    described: DescribedGroup, places: Sequence[Place], owners: Mapping[TopicPartition, Any]
) -> dict[str, Any]:
    def owner(place: Place) -> str | None:
        found = owners.get((place.topic, place.partition))
        return None if found is None else found.member_id

    return {
        "group": described.group_id,
        "type": described.type,
        "state": described.state,
        "assignor": described.assignor,
        "members": [
            {"member": each.member_id, "client": each.client_id, "host": each.host}
            for each in described.members
        ],
        "partitions": [
            {**place._asdict(), "lag": place.lag, "member": owner(place)} for place in places
        ],
    }


@group.command("seek")
@_group_argument
@click.option(
    "--to",
    "where",
    required=True,
    metavar="WHERE",
    help="earliest, latest, an offset as 5, or a time as @MS in milliseconds since 1970.",
)
@click.option(
    "-t",
    "--topic",
    "chosen",
    multiple=True,
    metavar="TOPIC[:PARTITION]",
    help="Only there. May be repeated.  [default: wherever the group has a position]",
)
@bootstrap_option
def seek(group_id: str, where: str, chosen: Sequence[str], bootstrap: str | None) -> None:
    """Move the positions of a group without members.

    \b
    sapwood group seek billing --to earliest
    sapwood group seek billing --to @1700000000000 -t orders -t parcels:3
    """
    from sapwood.client.group_admin import describe_group

    with client_for(bootstrap) as client:
        found = client.run(describe_group(client.core, client.now_ms, group_id))
        if found is not None and found.members:
            raise _has_members(group_id, len(found.members))
        keys = _chosen(client, group_id, chosen)
        positions = _targets(client, keys, where)
        client.commit_positions(group_id, positions)
    for (topic, partition), offset in positions.items():
        click.echo(f"{topic}:{partition} is at {offset}.")


def _total_lag(places: Iterable[Place]) -> int:
    return sum(each.lag or 0 for each in places)


def _members(count: int) -> str:
    return f"{count} member{'' if count == 1 else 's'}"


def _has_members(group_id: str, count: int) -> CommandFailed:
    return CommandFailed(
        f"group {group_id} has {_members(count)}: stop "
        f"{'it' if count == 1 else 'them'} first (`sapwood group describe {group_id}` names them)"
    )


def _chosen(client: KafkaClient, group_id: str, chosen: Sequence[str]) -> list[TopicPartition]:
    from sapwood.cli.topic import existing_topic

    keys: dict[TopicPartition, None] = {}
    for text in chosen:
        name, colon, number = text.rpartition(":")
        if not colon:
            name = text
        elif not number.isdigit():
            raise click.UsageError(f"-t {text}: write it as topic or topic:partition")
        partitions = existing_topic(client, name).partitions
        if colon and int(number) not in partitions:
            raise click.UsageError(f"topic {name} has no partition {number}")
        keys |= {(name, each): None for each in ([int(number)] if colon else partitions)}
    found = list(keys) if chosen else sorted(client.positions(group_id))
    if not found:
        raise CommandFailed(f"group {group_id} has no positions: say where with -t TOPIC")
    return found


def _targets(
    client: KafkaClient, keys: Sequence[TopicPartition], where: str
) -> dict[TopicPartition, int]:
    from sapwood.client.offsets import EARLIEST, LATEST

    starts, ends = _offsets(client, keys, EARLIEST), _offsets(client, keys, LATEST)
    for topic, partition in keys:
        if (topic, partition) not in ends:
            raise CommandFailed(f"topic {topic} has no partition {partition} that can be asked now")
    if where == "earliest":
        return starts
    if where == "latest":
        return ends
    if where.startswith("@") and where[1:].isdigit():
        found = _offsets(client, keys, int(where[1:]))
        # No record is that young: what comes next will be.
        return {key: offset if offset >= 0 else ends[key] for key, offset in found.items()}
    if not where.isdigit():
        raise click.UsageError(f"--to {where}: use earliest, latest, an offset as 5 or a time @MS")
    for key in keys:
        if not starts[key] <= int(where) <= ends[key]:
            topic, partition = key
            raise CommandFailed(
                f"{topic}:{partition} has offsets {starts[key]} to {ends[key]}, so {where} is none"
            )
    return dict.fromkeys(keys, int(where))


@group.command("rm")
@click.argument(
    "group_ids", nargs=-1, required=True, shell_complete=complete_group, metavar="GROUP…"
)
@click.option("-y", "--yes", is_flag=True, help="Don't ask.")
@bootstrap_option
def remove(group_ids: Sequence[str], yes: bool, bootstrap: str | None) -> None:
    """Remove groups without members, with their positions."""
    if not yes and sys.stdin.isatty():
        click.confirm(f"Remove {', '.join(group_ids)} with all positions?", abort=True, err=True)
    with client_for(bootstrap) as client:
        for group_id in group_ids:
            described = _described(client, group_id)
            if described.members:
                raise _has_members(group_id, len(described.members))
            client.delete_group(group_id)
            click.echo(f"Removed {group_id}.")
