"""`sapwood status`: how the cluster is."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sapwood.cli.connect import bootstrap_option, directory_option
from sapwood.cli.output import Screen, output_option, print_json, say, table_of
from sapwood.node.local import (
    NodeState,
    default_directory,
    edge_states,
    node_states,
    outbox_addresses,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

WATCH_S = 1.0
POLL_S = 0.1
STATUS_TIMEOUT_S = 2.0

COUNTS = ("under_replicated", "offline", "leaderless", "reassigning")
STYLES = {"running": "green", "alive": "green", "starting": "yellow"}


@dataclass(slots=True)
class NodeReport:
    id: int | None
    """None for an edge that the cluster hasn't given one yet."""
    kind: str = "core"
    state: str = "stopped"
    """running, starting or stopped on this machine; alive or dead elsewhere."""
    draining: bool = False
    leaders: int | None = None
    replicas: int | None = None
    rack: str | None = None
    pid: int | None = None
    addresses: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class OutboxReport:
    edge: int
    cut_off: bool
    records: int
    bytes: int
    limit_bytes: int
    refused: int
    aside: int

    def __str__(self) -> str:
        way = "cut off" if self.cut_off else "connected"
        aside = f", {self.aside} put aside" if self.aside else ""
        refused = f", {self.refused} refused" if self.refused else ""
        size = f"{self.bytes} of {self.limit_bytes} bytes"
        return f"Outbox of edge {self.edge}: {way}, {self.records} queued, {size}{refused}{aside}"


@dataclass(slots=True)
class Report:
    """What this machine's processes and the cluster's own word amount to."""

    bootstrap: str
    http: list[str] = field(default_factory=list)
    """Where the REST servers beside the nodes of this machine listen."""
    dir: str | None = None
    cluster_id: str | None = None
    controller: int | None = None
    controller_epoch: int | None = None
    under_replicated: int = 0
    offline: int = 0
    leaderless: int = 0
    reassigning: int = 0
    healthy: bool = False
    nodes: list[NodeReport] = field(default_factory=list)
    pipelines: list[dict[str, Any]] = field(default_factory=list)
    """Those of this machine that run, or were to run and don't."""
    outboxes: list[OutboxReport] = field(default_factory=list)
    """Of this machine's edges."""


@click.command()
@directory_option
@bootstrap_option
@click.option("-w", "--watch", is_flag=True, help="Go on showing it until Ctrl-C.")
@click.option("--exit-when-healthy", is_flag=True, help="Wait until all is well.")
@click.option(
    "--timeout",
    "timeout_s",
    type=float,
    metavar="SECONDS",
    help="With --exit-when-healthy: how long at most.  [default: for ever]",
)
@click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
@output_option
def status(
    directory: Path | None,
    bootstrap: str | None,
    watch: bool,
    exit_when_healthy: bool,
    timeout_s: float | None,
    as_json: bool,
    output: str,
) -> None:
    """Show the nodes, the controller and what is amiss.

    Of the cluster in --dir on this machine, or of any cluster with --bootstrap. Exit status 1
    unless every node runs and every partition has all its replicas.
    """
    directory = None if bootstrap else (directory or default_directory()).absolute()
    deadline = float("inf") if timeout_s is None else time.monotonic() + timeout_s
    as_json = as_json or output == "json"
    with Screen(watch and not as_json) as screen:
        while True:
            report = collect(directory, bootstrap)
            is_over = report.healthy or time.monotonic() >= deadline
            if watch or is_over or not exit_when_healthy:
                if as_json:
                    print_json(asdict(report))
                else:
                    _show(screen, report)
            if (is_over and exit_when_healthy) or not (watch or exit_when_healthy):
                sys.exit(0 if report.healthy else 1)
            time.sleep(WATCH_S if watch else POLL_S)


def collect(directory: Path | None, bootstrap: str | None) -> Report:
    """Of a directory on this machine, and what the first node that answers says."""
    local = [] if directory is None else [_reported(each) for each in node_states(directory)]
    edges = [] if directory is None else [_reported(each) for each in edge_states(directory)]
    nodes = {each.id: each for each in local}
    running = [each.addresses["kafka"] for each in local if "kafka" in each.addresses]
    addresses = bootstrap.split(",") if bootstrap else running
    report = Report(",".join(addresses), dir=str(directory) if directory else None)
    report.http = [each.addresses["http"] for each in local if "http" in each.addresses]
    said = _ask(addresses)
    if said is not None:
        report.cluster_id = said.cluster_id
        report.controller = said.controller if said.controller >= 0 else None
        report.controller_epoch = said.controller_epoch if said.controller >= 0 else None
        for name in COUNTS:
            setattr(report, name, getattr(said, name))
        for each in said.nodes:
            _add(nodes, each)
    report.nodes = [*sorted(nodes.values(), key=lambda it: it.id or 0), *edges]
    if directory is not None and (directory / "pipelines").exists():
        from sapwood.cli.pipeline_status import is_noteworthy, local_runs

        report.pipelines = [each for each in local_runs(directory) if is_noteworthy(each)]
    if directory is not None:
        report.outboxes = _outboxes(directory)
    are_there = all(each.state in ("running", "alive") for each in report.nodes)
    report.healthy = said is not None and are_there and _is_well(said)
    return report


def _reported(found: NodeState) -> NodeReport:
    return NodeReport(found.id, found.kind, found.state, pid=found.pid, addresses=found.addresses)


def _is_well(said: Any) -> bool:
    if said.cluster_id is None:  # a node that knows no more than itself
        return not said.offline_partitions
    return bool(said.healthy)


def _add(nodes: dict[int | None, NodeReport], known: Any) -> None:
    from sapwood.node.ready import join_address

    found = nodes.get(known.node_id)
    if found is None:
        found = nodes[known.node_id] = NodeReport(
            known.node_id,
            state="alive" if known.alive else "dead",
            addresses={"kafka": join_address(known.host, known.port)},
        )
    found.draining = known.draining
    found.leaders, found.replicas, found.rack = known.leaders, known.replicas, known.rack


def _ask(addresses: Sequence[str]) -> Any:
    from sapwood.node.asking import NoAnswer, NodeConnection

    for address in addresses:
        try:
            with NodeConnection(address, timeout_s=STATUS_TIMEOUT_S) as connection:
                return connection.status()
        except NoAnswer:
            continue
    return None


def _outboxes(directory: Path) -> list[OutboxReport]:
    from sapwood.node.asking import NoAnswer, NodeConnection

    found = []
    for address in outbox_addresses(directory):
        with (
            contextlib.suppress(NoAnswer),
            NodeConnection(address, timeout_s=STATUS_TIMEOUT_S) as connection,
        ):
            said = connection.outbox()
            records = sum(each.records for each in said.partitions)
            sizes = records, said.size_bytes, said.limit_bytes
            counts = said.refused_total, said.aside_total
            found.append(OutboxReport(said.node_id, said.is_cut_off, *sizes, *counts))
    return found


def _show(screen: Screen, report: Report) -> None:
    if report.nodes:
        screen.show(_drawn(report))
    else:
        where = report.dir or report.bootstrap
        say(f"Nothing has been started in {where}: sapwood up starts Sapwood")


def _drawn(report: Report) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    rows = [
        (
            each.id,
            each.kind,
            _state(each),
            each.leaders,
            each.replicas,
            each.rack,
            each.pid,
            " ".join(f"{name}={address}" for name, address in each.addresses.items()) or None,
        )
        for each in report.nodes
    ]
    headings = ("NODE", "KIND", "STATE", "LEADERS", "REPLICAS", "RACK", "PID", "ADDRESSES")
    parts: list[RenderableType] = [table_of(headings, rows), Text()]
    if report.pipelines:
        from sapwood.cli.pipeline_status import drawn

        parts += [drawn(report.pipelines), Text()]
    parts += [Text(str(each), style="yellow" if each.records else "") for each in report.outboxes]
    if report.cluster_id is not None:
        controller = (
            "no controller"
            if report.controller is None
            else f"controller {report.controller} in epoch {report.controller_epoch}"
        )
        parts.append(Text(f"Cluster {report.cluster_id}: {controller}"))
    amiss = ", ".join(
        f"{count} {name.replace('_', '-')}"
        for name in COUNTS
        if (count := getattr(report, name)) > 0
    )
    parts.append(
        Text("Healthy", style="green")
        if report.healthy
        else Text(f"Partitions: {amiss}" if amiss else "Not healthy", style="red")
    )
    return Group(*parts)


def _state(node: NodeReport) -> Any:
    from rich.text import Text

    shown = f"{node.state}, draining" if node.draining else node.state
    return Text(shown, style="yellow" if node.draining else STYLES.get(shown, "red"))
