"""`up` and `down`: Sapwood on this machine."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from sapwood.cli import CommandFailed
from sapwood.cli.connect import directory_option
from sapwood.node import ready
from sapwood.node.layout import (
    DEFAULT_PORT,
    GATEWAY_PORTS,
    LayoutUnusable,
    edge_indexes,
    gateway_addresses,
    node_ids,
)
from sapwood.node.local import (
    SUPERVISOR_LOCK,
    NodeState,
    default_directory,
    edge_states,
    node_states,
    supervisor_pid,
)
from sapwood.node.lock import DirectoryLocked, is_locked
from sapwood.node.process import NEW_GROUP, NodeFailed

GONE_TIMEOUT_S = 45.0
POLL_S = 0.01
DEFAULT_NODES = 3


@click.command()
@click.option(
    "--nodes",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"How many; more than before makes the cluster grow.  [default: {DEFAULT_NODES}, "
    "then as many as there are]",
)
@click.option(
    "--edges",
    type=click.IntRange(min=0),
    metavar="M",
    help="How many edges, which relay to clients and hold nothing.  [default: as many as before]",
)
@click.option(
    "--outbox",
    is_flag=True,
    help="Give edges an outbox, which keeps what can't be sent now.  [default: as before]",
)
@directory_option
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Kafka port of the first node, the others follow; 0 takes free ones.  "
    f"[default: {DEFAULT_PORT}, then as before]",
)
@click.option(
    "--rest-port",
    type=click.IntRange(0, 65535),
    help="HTTP port of the first node's gateway, the others follow; 0 takes free ones.  "
    f"[default: {GATEWAY_PORTS['rest']}, then as before; free ones with --port 0]",
)
@click.option(
    "--lines-port",
    type=click.IntRange(0, 65535),
    help=f"The same for the line protocol.  [default: {GATEWAY_PORTS['lines']}, then as before]",
)
@click.option("--detach", is_flag=True, help="Return when ready, and leave it running.")
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the nodes."
)
@click.option(
    "--pipeline",
    "pipelines",
    multiple=True,
    metavar="NAME",
    help="Keep a pipeline running, too; with its options in quotes: 'archive --format delta'.",
)
def up(
    nodes: int | None,
    edges: int | None,
    outbox: bool,
    directory: Path | None,
    port: int | None,
    rest_port: int | None,
    lines_port: int | None,
    detach: bool,
    settings: Sequence[str],
    pipelines: Sequence[str],
) -> None:
    """Start Sapwood on this machine and keep it running."""
    directory = (directory or default_directory()).absolute()
    if (pid := supervisor_pid(directory)) is not None:
        if detach:
            click.echo(f"Sapwood is already up (process {pid}).")
            _greet(directory, *_addresses(directory))
            return
        raise CommandFailed(
            f"Sapwood is already up in {directory} (process {pid}): sapwood down stops it"
        )
    nodes = nodes or len(node_ids(directory)) or DEFAULT_NODES
    edges = len(edge_indexes(directory)) if edges is None else edges
    folders: list[Path] = []
    if pipelines:
        from sapwood.cli.pipeline import standing

        folders = [folder.path for folder in standing(directory, pipelines)]
    ports = {"rest": rest_port, "lines": lines_port}
    if detach:
        _start_detached(directory, nodes, edges, outbox, port, ports, settings, folders)
        _greet(directory, *_addresses(directory), folders)
        return

    from sapwood.cli.supervisor import Supervisor

    try:
        supervisor = Supervisor(
            directory,
            nodes,
            port,
            settings,
            folders,
            edges=edges,
            outbox=outbox,
            ports=ports,
            echo=True,
        )
        supervisor.start()
    except (NodeFailed, DirectoryLocked, LayoutUnusable, OSError) as error:
        raise CommandFailed(str(error)) from error
    except KeyboardInterrupt:
        sys.exit(130)
    _greet(directory, *_addresses(directory), folders, attached=True)
    supervisor.run()
    click.echo("Sapwood is down.")


def _start_detached(
    directory: Path,
    nodes: int,
    edges: int,
    outbox: bool,
    port: int | None,
    ports: Mapping[str, int | None],
    settings: Sequence[str],
    pipelines: Sequence[Path],
) -> None:
    """Have a supervisor of their own keep the nodes running."""
    script = Path(__file__).with_name("supervisor.py")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        log = (directory / "supervisor.log").open("ab")
    except OSError as error:
        raise CommandFailed(f"can't use the directory {directory}: {error.strerror}") from error
    with log:
        supervisor = subprocess.Popen(
            [
                *(sys.executable, "-P", str(script), str(directory)),
                *map(json.dumps, (nodes, edges, outbox, port, ports)),
                *(json.dumps([*map(str, pipelines)]), *settings),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            creationflags=NEW_GROUP,
        )
    line = supervisor.stdout.readline() if supervisor.stdout is not None else b""
    answer: dict[str, Any] = {"error": f"see {directory / 'supervisor.log'}"}
    if line:
        answer = json.loads(line)
    if "error" in answer:
        raise CommandFailed(answer["error"])


def _addresses(directory: Path) -> tuple[str, str]:
    """Of the nodes, and of the edges."""
    nodes, edges = node_states(directory), edge_states(directory)
    return _kafka(nodes), _kafka(edges)


def _kafka(states: list[NodeState]) -> str:
    return ",".join(it.addresses["kafka"] for it in states if it.addresses)


def _greet(
    directory: Path,
    bootstrap: str,
    edges: str,
    pipelines: Sequence[Path] = (),
    *,
    attached: bool = False,
) -> None:
    more = f"\nEdges: {edges}" if edges else ""
    if pipelines:
        names = ", ".join(folder.name for folder in pipelines)
        more += f"\nPipelines on Spark, which starts now: {names}"
    gateways = gateway_addresses(directory)
    rest, lines = (next(iter(gateways.get(it, {}).values()), "") for it in ("rest", "lines"))
    is_default = directory == default_directory().absolute()
    down = "sapwood down" if is_default else f"sapwood down --dir {directory}"
    at = "" if is_default else f" -b {bootstrap}"
    click.echo(
        f"""\
Sapwood is up: {click.style(bootstrap, bold=True)}{more}
Data is in {directory}. To stop it: {"Ctrl-C" if attached else down}

Try:
  echo hello | sapwood produce greetings{at}
  sapwood consume greetings -o beginning -e{at}
or without any client:
  curl http://{rest}/status
  nc {lines.replace(":", " ")}
or any Kafka client:
  echo hello | kcat -P -b {bootstrap} -t greetings
  kcat -C -b {bootstrap} -t greetings -o beginning -e
or from Python:
  from confluent_kafka import Producer
  producer = Producer({{"bootstrap.servers": "{bootstrap}"}})
  producer.produce("greetings", "hello")
  producer.flush()
"""
    )


@click.command()
@directory_option
def down(directory: Path | None) -> None:
    """Stop what `up` started, and wait until it is gone."""
    directory = (directory or default_directory()).absolute()
    supervisor = supervisor_pid(directory)
    states = [*node_states(directory), *edge_states(directory)]
    pids = {state.pid for state in states if state.pid is not None}
    if supervisor is not None:
        _terminate(supervisor)
    else:
        for pid in pids:
            _terminate(pid)
    if supervisor is None and not pids:
        click.echo(f"Nothing is running in {directory}.")
        return
    locks = [directory / SUPERVISOR_LOCK, directory / ready.LOCK_NAME]
    for kind in ("node", "edge"):
        locks += directory.glob(f"{kind}-*/{ready.LOCK_NAME}")
    deadline = time.monotonic() + GONE_TIMEOUT_S
    while any(map(is_locked, locks)):
        if time.monotonic() > deadline:
            running = ", ".join(str(pid) for pid in (supervisor, *pids) if pid is not None)
            raise CommandFailed(
                f"still running after {GONE_TIMEOUT_S:.0f} s: kill process {running}"
            )
        time.sleep(POLL_S)
    click.echo("Sapwood is down.")


def _terminate(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:  # it ended by itself in the meantime
        pass
    except PermissionError as error:
        raise CommandFailed(f"process {pid} belongs to another user") from error
