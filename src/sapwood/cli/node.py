"""`sapwood node`: run a node, drain one, remove one."""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from sapwood.cli import CommandFailed
from sapwood.cli.connect import bootstrap_option
from sapwood.cli.operate import Access, access, address_of, secret_file_option
from sapwood.cli.output import progress

POLL_S = 0.2


@click.group(invoke_without_command=True)
@click.option(
    "--bootstrap",
    is_flag=True,
    default=None,
    help="Found a cluster; without effect on a node that belongs to one.",
)
@click.option(
    "--join",
    multiple=True,
    metavar="HOST:PORT",
    help="Join the cluster of this node. May be repeated.",
)
@click.option(
    "--edge",
    is_flag=True,
    default=None,
    help="Hold no replica: relay the cluster to the clients of this node.",
)
@click.option(
    "--parent",
    metavar="HOST:PORT",
    help="The node that an edge hangs from, a core node or an edge.  [default: one of --join]",
)
@click.option(
    "--outbox",
    is_flag=True,
    default=None,
    help="An edge that can't reach the cluster keeps what asks for one acknowledgement on its own "
    "disk, and delivers it later.",
)
@click.option(
    "--secret-file",
    metavar="FILE",
    help="Where the cluster's secret lies.  [default: `secret` in the data directory]",
)
@click.option("--rack", help="Where this node stands: copies are kept in different racks.")
@click.option(
    "--id",
    "node_id",
    type=click.IntRange(min=0),
    help="This node's id.  [default: 0 for a founder, else what the cluster gives]",
)
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
@click.option(
    "--rest", metavar="HOST:PORT", help="Serve REST there, from a gateway beside this node."
)
@click.option("--lines", metavar="HOST:PORT", help="And the line protocol there.")
@click.option(
    "--advertise-lines",
    metavar="HOST:PORT",
    help="Where other nodes send clients of the line protocol.  [default: this node's advertised "
    "host, the port of --lines]",
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
@click.pass_context
def node(
    context: click.Context,
    bootstrap: bool | None,
    join: Sequence[str],
    edge: bool | None,
    parent: str | None,
    outbox: bool | None,
    secret_file: str | None,
    rack: str | None,
    node_id: int | None,
    directory: str | None,
    listen: Sequence[str],
    advertise: Sequence[str],
    rest: str | None,
    lines: str | None,
    advertise_lines: str | None,
    config_file: str | None,
    auto_create: bool | None,
    log_level: str | None,
    log_format: str | None,
    settings: Sequence[str],
) -> None:
    """Run one node in the foreground, for a host of its own.

    The first node of a cluster is started with --bootstrap, the others with --join; a node that
    is started with neither finds the cluster that you run on this host. Settings come from the
    TOML file, then SAPWOOD_* variables, then these options.
    """
    if context.invoked_subcommand is not None:
        return
    if lines is not None and rest is None:
        raise click.UsageError("--lines needs --rest: one gateway serves both")
    from sapwood.node.config import ConfigError, load

    try:
        config = load(
            config_file,
            node_id=node_id,
            data_dir=directory,
            listen=listen,
            advertise=advertise,
            bootstrap=bootstrap,
            join=join,
            edge=edge,
            parent=parent,
            outbox=outbox,
            secret_file=secret_file,
            rack=rack,
            auto_create_topics=auto_create,
            log_level=log_level,
            log_format=log_format,
            settings=settings,
        )
    except ConfigError as error:
        raise CommandFailed(str(error)) from error
    from sapwood.node.shell import run

    if rest is None:
        sys.exit(run(config))
    from sapwood.cli.beside import Beside

    gateway = Beside(Path(config.data_dir).absolute(), rest, lines, advertise_lines)
    gateway.start()
    try:
        status = run(config)
    finally:
        gateway.stop()
    sys.exit(status)


def _of_one_node(function: Callable[..., None]) -> Callable[..., None]:
    """What commands that change one node of the cluster are told."""
    argument = click.argument("node_id", type=click.IntRange(min=0), metavar="ID")
    return argument(bootstrap_option(secret_file_option(function)))


@node.command()
@_of_one_node
@click.option("--no-wait", is_flag=True, help="Return at once; the node empties itself meanwhile.")
@click.option(
    "--timeout",
    "timeout_s",
    type=float,
    metavar="SECONDS",
    help="How long to wait.  [default: for ever]",
)
def drain(
    node_id: int,
    bootstrap: str | None,
    secret_file: Path | None,
    no_wait: bool,
    timeout_s: float | None,
) -> None:
    """Move everything off a node, while it goes on serving.

    Waits until the node holds nothing. It stays a member: `undrain` lets it have its share again,
    `remove` takes it out of the cluster.
    """
    to = access(bootstrap, secret_file)
    with to.to_any() as connection:
        address_of(connection.status(), node_id)
        connection.drain(node_id)
    if no_wait:
        click.echo(f"Node {node_id} is being drained: sapwood status -w shows how far it is.")
        return
    _await_empty(to, node_id, timeout_s)
    click.echo(f"Node {node_id} is drained: it holds nothing.")


def _await_empty(to: Access, node_id: int, timeout_s: float | None) -> None:
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    held = _held(to, node_id)
    with progress(f"draining node {node_id}", held, unit="replicas") as advance:
        while held:
            if deadline is not None and time.monotonic() > deadline:
                raise CommandFailed(
                    f"node {node_id} still holds {held} replicas after {timeout_s:g} s; "
                    "it is drained further: sapwood status -w shows how far it is"
                )
            time.sleep(POLL_S)
            now = _held(to, node_id)
            advance(held - now)
            held = now


def _held(to: Access, node_id: int) -> int:
    """What the node holds by the word of one that answers; others may be down meanwhile."""
    with to.to_any() as connection:
        nodes = {each.node_id: each for each in connection.status().nodes}
    if node_id not in nodes:
        raise CommandFailed(f"node {node_id} has left the cluster meanwhile")
    replicas: int = nodes[node_id].replicas
    return replicas


@node.command()
@_of_one_node
def undrain(node_id: int, bootstrap: str | None, secret_file: Path | None) -> None:
    """Let a node that was drained have its share again."""
    with access(bootstrap, secret_file).to_any() as connection:
        connection.undrain(node_id)
    click.echo(f"Node {node_id} takes its share again.")


@node.command()
@_of_one_node
def remove(node_id: int, bootstrap: str | None, secret_file: Path | None) -> None:
    """Take a node out of the cluster for good.

    It must hold nothing: drain it first. A node that is removed stops; to come back it has to join
    anew with an empty directory.
    """
    with access(bootstrap, secret_file).to_any() as connection:
        connection.remove(node_id)
    click.echo(f"Node {node_id} is no longer a member.")
