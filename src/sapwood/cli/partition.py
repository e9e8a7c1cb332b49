"""`sapwood partition`: where each partition's copies are, and the last resort if most are lost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from sapwood.cli import CommandFailed
from sapwood.cli.connect import bootstrap_option, complete_topic, topic_argument
from sapwood.cli.operate import Access, access, address_of, secret_file_option
from sapwood.cli.output import output_option, print_json, print_table, say

LEADING = ("leader", "elected")


@click.group()
def partition() -> None:
    """Show partitions and their replicas, recover one."""


class Copy(NamedTuple):
    """A replica, by the word of the node that holds it."""

    node: int
    replica: Any


class Partition(NamedTuple):
    topic: str
    number: int
    copies: list[Copy]

    @property
    def leading(self) -> Copy | None:
        """Of two that believe they lead, the one with the higher epoch does."""
        found = [copy for copy in self.copies if copy.replica.role in LEADING]
        return max(found, key=lambda copy: copy.replica.epoch, default=None)

    @property
    def best(self) -> Any:
        """The replica whose view of the whole counts."""
        return (self.leading or max(self.copies, key=lambda copy: copy.replica.term)).replica

    @property
    def state(self) -> str:
        found = []
        if self.leading is None:
            found.append("leaderless")
        elif len(self.best.in_sync) < len(self.best.target):
            found.append("under-replicated")
        if sorted(voter.node for voter in self.best.voters) != sorted(self.best.target):
            found.append("moving")
        found += [f"offline on {copy.node}" for copy in self.copies if copy.replica.offline_reason]
        return ", ".join(found) or "ok"

    def summary(self) -> dict[str, Any]:
        best = self.best
        return {
            "topic": self.topic,
            "partition": self.number,
            "leader": self.leading.node if self.leading else None,
            "epoch": best.epoch,
            "replicas": list(best.target),
            "voters": [voter.node for voter in best.voters],
            "in_sync": list(best.in_sync),
            "high_watermark": best.high_watermark,
            "state": self.state,
        }

    def details(self) -> list[dict[str, Any]]:
        heard = {each.node: each for each in self.best.followers}
        rows = []
        for node, replica in self.copies:
            known = heard.get(node)
            mine = [voter.incarnation for voter in self.best.voters if voter.node == node]
            rows.append(
                {
                    "node": node,
                    "role": replica.role,
                    "term": replica.term,
                    "epoch": replica.epoch,
                    "voter": bool(mine),
                    "in_sync": node in self.best.in_sync,
                    "log_start": replica.log_start,
                    "log_end": replica.log_end,
                    "durable_end": known.durable_end if known else None,
                    "high_watermark": replica.high_watermark,
                    "heard_ms": known.heard_ms if known else None,
                    "offline": replica.offline_reason,
                }
            )
        return rows


def _partitions(to: Access, topics: Sequence[str] | None) -> list[Partition]:
    """Everything that the nodes which answer say of these topics, or of all."""
    from sapwood.node.asking import NoAnswer

    with to.to_any() as connection:
        status = connection.status()
    found: dict[tuple[str, int], Partition] = {}
    for node in status.nodes:
        try:
            with to.to(address_of(status, node.node_id)) as connection:
                replicas = connection.describe_replicas(topics)
        except NoAnswer as error:
            say(f"node {node.node_id} doesn't answer ({error}): its replicas aren't shown")
            continue
        for replica in replicas:
            key = (replica.topic, replica.partition)
            found.setdefault(key, Partition(*key, [])).copies.append(Copy(node.node_id, replica))
    return [found[key] for key in sorted(found)]


@partition.command("ls")
@click.argument("topics", nargs=-1, metavar="[TOPIC]…", shell_complete=complete_topic)
@click.option("-u", "--unhealthy", is_flag=True, help="Only those with which something is amiss.")
@output_option
@bootstrap_option
@secret_file_option
def list_partitions(
    topics: Sequence[str],
    unhealthy: bool,
    output: str,
    bootstrap: str | None,
    secret_file: Path | None,
) -> None:
    """List partitions with their leaders and replicas."""
    found = _partitions(access(bootstrap, secret_file), topics or None)
    rows = [each.summary() for each in found if not unhealthy or each.state != "ok"]
    if output == "json":
        print_json(rows)
    elif rows:
        headings = ("TOPIC", "PARTITION", "LEADER", "EPOCH", "REPLICAS", "VOTERS", "IN SYNC")
        print_table((*headings, "COMMITTED", "STATE"), [_row(row.values()) for row in rows])
    else:
        say("All is well." if found else "There are no partitions.")


@partition.command("describe")
@topic_argument
@click.argument("number", metavar="PARTITION", type=click.IntRange(min=0))
@output_option
@bootstrap_option
@secret_file_option
def describe(
    topic: str, number: int, output: str, bootstrap: str | None, secret_file: Path | None
) -> None:
    """Show every replica of a partition, as its own node sees it."""
    found = _one(access(bootstrap, secret_file), topic, number)
    if output == "json":
        print_json({**found.summary(), "copies": found.details()})
        return
    for name, value in found.summary().items():
        shown = _cell(value)
        click.echo(f"{name.replace('_', ' '):<16}{'-' if shown is None else shown}")
    click.echo()
    rows = found.details()
    headings = [name.upper().replace("_", " ") for name in rows[0]]
    print_table(headings, [_row(row.values()) for row in rows])


def _one(to: Access, topic: str, number: int) -> Partition:
    for each in _partitions(to, [topic]):
        if (each.topic, each.number) == (topic, number):
            return each
    raise CommandFailed(f"no node that answers has a replica of {topic}, partition {number}")


def _row(values: Iterable[object]) -> list[object]:
    return [_cell(value) for value in values]


def _cell(value: object) -> object:
    if isinstance(value, list):
        return ",".join(map(str, value)) or None
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value


@partition.command("recover")
@topic_argument
@click.argument("number", metavar="PARTITION", type=click.IntRange(min=0))
@click.option("--node", "node_id", type=click.IntRange(min=0), required=True, help="Whose copy.")
@click.option("--unsafe", is_flag=True, help="Say that you know what it means.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask.")
@bootstrap_option
@secret_file_option
def recover(
    topic: str,
    number: int,
    node_id: int,
    unsafe: bool,
    yes: bool,
    bootstrap: str | None,
    secret_file: Path | None,
) -> None:
    """Let one replica go on alone, when most are lost for good.

    A partition serves writes as long as most of its replicas can agree. If most of them will never
    come back, this makes the copy of one node the truth. What only the lost ones held is gone, even
    if it was acknowledged. If a lost replica comes back after all, what it has beyond this copy is
    thrown away.
    """
    if not unsafe:
        raise click.UsageError(
            "acknowledged records can be lost by this: wait for the other replicas as long as "
            "there is hope for them, and then say --unsafe"
        )
    to = access(bootstrap, secret_file)
    found = _one(to, topic, number)
    chosen = next((copy.replica for copy in found.copies if copy.node == node_id), None)
    if chosen is None:
        holders = ", ".join(str(copy.node) for copy in found.copies)
        raise CommandFailed(f"node {node_id} has no replica of it: choose one of {holders}")
    if found.leading is not None:
        raise CommandFailed(
            f"{topic}, partition {number} is led by node {found.leading.node}: it needs no recovery"
        )
    further = [copy for copy in found.copies if _position(copy.replica) > _position(chosen)]
    for copy in further:
        say(
            f"Node {copy.node} has more: its copy ends at {copy.replica.log_end} "
            f"in epoch {copy.replica.epoch}."
        )
    if not yes:
        click.confirm(
            f"Make node {node_id}'s copy of {topic}, partition {number} the truth? It ends at "
            f"{chosen.log_end}; {chosen.high_watermark} is known to be committed. Acknowledged "
            "records that it lacks are lost.",
            abort=True,
            err=True,
        )
    with to.to_node(node_id) as connection:
        connection.recover_partition(topic, number)
    click.echo(f"{topic}, partition {number} goes on from node {node_id}'s copy.")


def _position(replica: Any) -> tuple[int, int]:
    return replica.epoch, replica.log_end
