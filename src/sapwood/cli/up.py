"""`up`, `down`, `status` and `node`: Sapwood on this machine."""

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
from sapwood.cli.output import output_option, print_json, print_table, say
from sapwood.node import ready
from sapwood.node.local import (
    SUPERVISOR_LOCK,
    NodeState,
    default_directory,
    node_states,
    supervisor_pid,
)
from sapwood.node.lock import DirectoryLocked, is_locked
from sapwood.node.process import NEW_GROUP, NodeFailed

GONE_TIMEOUT_S = 45.0
POLL_S = 0.01

directory_option = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the data lies.  [default: $SAPWOOD_DIR or ~/.sapwood]",
)


class NotYet(CommandFailed):
    exit_code = 2


@click.command()
@click.option("--nodes", type=click.IntRange(min=1), default=1, show_default=True, metavar="N")
@directory_option
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9092,
    show_default=True,
    help="Kafka port of the first node.",
)
@click.option("--detach", is_flag=True, help="Return when ready, and leave it running.")
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the nodes."
)
def up(
    nodes: int, directory: Path | None, port: int, detach: bool, settings: Sequence[str]
) -> None:
    """Start Sapwood on this machine and keep it running."""
    if nodes > 1:
        raise NotYet("more than one node comes with replication: give --nodes 1")
    directory = (directory or default_directory()).absolute()
    if (pid := supervisor_pid(directory)) is not None:
        if detach:
            click.echo(f"Sapwood is already up (process {pid}).")
            _greet(directory, [state.addresses for state in node_states(directory)])
            return
        raise CommandFailed(
            f"Sapwood is already up in {directory} (process {pid}): sapwood down stops it"
        )
    if detach:
        _greet(directory, _start_detached(directory, nodes, port, settings))
        return

    from sapwood.cli.supervisor import Supervisor

    try:
        supervisor = Supervisor(directory, nodes, port, settings, echo=True)
        found = supervisor.start()
    except (NodeFailed, DirectoryLocked, OSError) as error:
        raise CommandFailed(str(error)) from error
    except KeyboardInterrupt:
        sys.exit(130)
    _greet(directory, [node["listeners"] for node in found], attached=True)
    supervisor.run()
    click.echo("Sapwood is down.")


def _start_detached(
    directory: Path, nodes: int, port: int, settings: Sequence[str]
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
            [sys.executable, "-P", str(script), str(directory), str(nodes), str(port), *settings],
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


@click.command()
@directory_option
@output_option
def status(directory: Path | None, output: str) -> None:
    """Show the nodes of this machine; exit status 1 unless all are running."""
    directory = (directory or default_directory()).absolute()
    states = node_states(directory)
    running = [state for state in states if state.state == "running"]
    bootstrap = ",".join(state.addresses["kafka"] for state in running if state.addresses)
    if output == "json":
        nodes = [state._asdict() for state in states]
        print_json({"bootstrap": bootstrap, "dir": str(directory), "nodes": nodes})
    elif not states:
        say(f"Nothing has been started in {directory}: sapwood up starts a node")
    else:
        rows = [
            (state.id, state.kind, state.state, state.pid, _addresses(state)) for state in states
        ]
        print_table(("NODE", "KIND", "STATE", "PID", "ADDRESSES"), rows)
    sys.exit(0 if states and len(running) == len(states) else 1)


def _addresses(state: NodeState) -> str | None:
    return " ".join(f"{name}={address}" for name, address in state.addresses.items()) or None


@click.command()
@click.option("--id", "node_id", type=click.IntRange(min=0), help="This node's id.  [default: 0]")
@click.option("--dir", "directory", metavar="DIR", help="Where this node keeps its data.")
@click.option(
    "--listen",
    multiple=True,
    metavar="[NAME=]HOST:PORT",
    help="May be repeated.  [default: kafka=127.0.0.1:9092]",
)
@click.option(
    "--advertise", multiple=True, metavar="[NAME=]HOST:PORT", help="What clients are told."
)
@click.option("--config", "config_file", metavar="FILE", help="Settings in TOML.")
@click.option(
    "--auto-create/--no-auto-create",
    default=None,
    help="Whether a topic that is asked for and doesn't exist is made.",
)
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]))
@click.option("--log-format", type=click.Choice(["console", "json"]))
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Any setting, or a Kafka broker config such as log.retention.ms=60000.",
)
def node(
    node_id: int | None,
    directory: str | None,
    listen: Sequence[str],
    advertise: Sequence[str],
    config_file: str | None,
    auto_create: bool | None,
    log_level: str | None,
    log_format: str | None,
    settings: Sequence[str],
) -> None:
    """Run one node in the foreground, for a host of its own.

    Settings come from the TOML file, then SAPWOOD_* variables, then these options.
    """
    from sapwood.node.config import ConfigError, load

    try:
        config = load(
            config_file,
            node_id=node_id,
            data_dir=directory,
            listen=listen,
            advertise=advertise,
            auto_create_topics=auto_create,
            log_level=log_level,
            log_format=log_format,
            settings=settings,
        )
    except ConfigError as error:
        raise CommandFailed(str(error)) from error
    from sapwood.node.run import run

    sys.exit(run(config))


def _terminate(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:  # it ended by itself in the meantime
        pass
    except PermissionError as error:
        raise CommandFailed(f"process {pid} belongs to another user") from error
