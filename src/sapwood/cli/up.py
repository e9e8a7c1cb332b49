"""`up` and `down`: Sapwood on this machine."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from sapwood.cli import CommandFailed
from sapwood.cli.connect import directory_option
from sapwood.node import ready
from sapwood.node.layout import DEFAULT_PORT, LayoutUnusable, node_ids
from sapwood.node.local import SUPERVISOR_LOCK, default_directory, node_states, supervisor_pid
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
@directory_option
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Kafka port of the first node, the others follow; 0 takes free ones.  "
    f"[default: {DEFAULT_PORT}, then as before]",
)
@click.option("--detach", is_flag=True, help="Return when ready, and leave it running.")
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the nodes."
)
def up(
    nodes: int | None,
    directory: Path | None,
    port: int | None,
    detach: bool,
    settings: Sequence[str],
) -> None:
    """Start Sapwood on this machine and keep it running."""
    directory = (directory or default_directory()).absolute()
    if (pid := supervisor_pid(directory)) is not None:
        if detach:
            click.echo(f"Sapwood is already up (process {pid}).")
            _greet(directory, [state.addresses for state in node_states(directory)])
            return
        raise CommandFailed(
            f"Sapwood is already up in {directory} (process {pid}): sapwood down stops it"
        )
    nodes = nodes or len(node_ids(directory)) or DEFAULT_NODES
    if detach:
        _greet(directory, _start_detached(directory, nodes, port, settings))
        return

    from sapwood.cli.supervisor import Supervisor

    try:
        supervisor = Supervisor(directory, nodes, port, settings, echo=True)
        found = supervisor.start()
    except (NodeFailed, DirectoryLocked, LayoutUnusable, OSError) as error:
        raise CommandFailed(str(error)) from error
    except KeyboardInterrupt:
        sys.exit(130)
    _greet(directory, [node["listeners"] for node in found], attached=True)
    supervisor.run()
    click.echo("Sapwood is down.")


def _start_detached(
    directory: Path, nodes: int, port: int | None, settings: Sequence[str]
) -> list[dict[str, str]]:
    """Addresses of the nodes that a supervisor of their own now keeps running."""
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
                *(json.dumps(nodes), json.dumps(port), *settings),
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
    return [node["listeners"] for node in answer["nodes"]]


def _greet(directory: Path, listeners: list[dict[str, str]], *, attached: bool = False) -> None:
    bootstrap = ",".join(addresses["kafka"] for addresses in listeners if addresses)
    is_default = directory == default_directory().absolute()
    down = "sapwood down" if is_default else f"sapwood down --dir {directory}"
    at = "" if is_default else f" -b {bootstrap}"
    click.echo(
        f"""\
Sapwood is up: {click.style(bootstrap, bold=True)}
Data is in {directory}. To stop it: {"Ctrl-C" if attached else down}

Try:
  echo hello | sapwood produce greetings{at}
  sapwood consume greetings -o beginning -e{at}
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
    pids = {state.pid for state in node_states(directory) if state.pid is not None}
    if supervisor is not None:
        _terminate(supervisor)
    else:
        for pid in pids:
            _terminate(pid)
    if supervisor is None and not pids:
        click.echo(f"Nothing is running in {directory}.")
        return
    locks = [directory / SUPERVISOR_LOCK, directory / ready.LOCK_NAME]
    locks += directory.glob(f"node-*/{ready.LOCK_NAME}")
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
