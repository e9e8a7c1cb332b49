"""`sapwood node`: one node in the foreground, for a host of its own."""

import sys
from collections.abc import Sequence

import click

from sapwood.cli import CommandFailed


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
    secret_file: str | None,
    rack: str | None,
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

    The first node of a cluster is started with --bootstrap, the others with --join; a node that
    is started with neither finds the cluster that you run on this host. Settings come from the
    TOML file, then SAPWOOD_* variables, then these options.
    """
    if context.invoked_subcommand is not None:
        return
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
            secret_file=secret_file,
            rack=rack,
            auto_create_topics=auto_create,
            log_level=log_level,
            log_format=log_format,
            settings=settings,
        )
    except ConfigError as error:
        raise CommandFailed(str(error)) from error
    from sapwood.node.run import run

    sys.exit(run(config))
