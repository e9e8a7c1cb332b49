"""The command line: `sapwood COMMAND`, each command in a file of its own.

In: arguments, the environment, standard input. Out: results on standard output, everything else
on standard error; exit status 0, or 1 with one line that says what to do, or 2 for wrong usage.
Always: a command is imported only when it is used, so that `sapwood --help` answers at once.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import click

from sapwood.cli.help import ColouredHelp


class Entry(NamedTuple):
    """Where a command lives, and what `--help` says of it without looking there."""

    place: str
    summary: str


COMMANDS: Mapping[str, Entry] = {
    "up": Entry("sapwood.cli.up:up", "Start Sapwood on this machine and keep it running."),
    "down": Entry("sapwood.cli.up:down", "Stop what `up` started, and wait until it is gone."),
    "status": Entry(
        "sapwood.cli.status:status",
        "Show the nodes, the controller and what is amiss.",
    ),
    "tree": Entry("sapwood.cli.tree:tree", "Draw the tree of core nodes and edges."),
    "trace": Entry(
        "sapwood.cli.tree:trace",
        "Show when a record arrives where in the tree.",
    ),
    "node": Entry("sapwood.cli.node:node", "Run one node in the foreground."),
    "gateway": Entry(
        "sapwood.cli.gateway:gateway", "Serve REST and the line protocol in front of a cluster."
    ),
    "partition": Entry(
        "sapwood.cli.partition:partition", "Show partitions and their replicas, recover one."
    ),
    "topic": Entry("sapwood.cli.topic:topic", "List, create, describe, alter and remove topics."),
    "produce": Entry("sapwood.cli.produce:produce", "Send lines to a topic."),
    "consume": Entry("sapwood.cli.consume:consume", "Print the records of a topic."),
    "put": Entry("sapwood.cli.put:put", "Put messages into topics."),
    "get": Entry("sapwood.cli.get:get", "Print what a durable subscriber has yet to get."),
    "subscribe": Entry("sapwood.cli.subscribe:subscribe", "Begin durable subscriptions."),
    "unsubscribe": Entry("sapwood.cli.subscribe:unsubscribe", "End durable subscriptions."),
    "pending": Entry(
        "sapwood.cli.subscribe:pending", "Show what durable subscribers have yet to get."
    ),
    "group": Entry("sapwood.cli.group:group", "List, describe, move and remove consumer groups."),
    "pipeline": Entry(
        "sapwood.cli.pipeline:pipeline", "Run pipelines on Spark, and watch and stop them."
    ),
    "chaos": Entry(
        "sapwood.cli.chaos:chaos", "Let clients misbehave, and see that the guarantees hold."
    ),
    "bench": Entry("sapwood.cli.bench:bench", "Measure throughput and latency of a cluster."),
    "log": Entry("sapwood.cli.log:log", "Look into logs on disk."),
    "completion": Entry("sapwood.cli.completion:completion", "Print a shell's completion script."),
}


class CommandFailed(click.ClickException):
    """What a command couldn't do, in one line that says what to do about it."""

    def show(self, file: Any = None) -> None:
        line = " ".join(self.message.split())
        click.echo(f"{click.style('error:', fg='red')} {line}", file=file or sys.stderr)


class LazyGroup(click.Group):
    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name].place.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        return command if isinstance(command, click.Command) else None

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            words = _explain(error)
            if words is None:
                raise
            raise CommandFailed(words) from error


def _explain(error: Exception) -> str | None:
    """One line for people, if the error is one that they can act on."""
    from sapwood.client import (
        ClientClosed,
        KafkaError,
        NotAcknowledged,
        NotSubscribed,
        PositionLost,
    )
    from sapwood.node.asking import NoAnswer

    if isinstance(error, KafkaError):
        return error.message or error.code.name
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    ours = ClientClosed | NoAnswer | NotAcknowledged | NotSubscribed | PositionLost
    return str(error) if isinstance(error, ours) else None


def _print_version(context: click.Context, _: click.Parameter, is_wanted: bool) -> None:
    if is_wanted and not context.resilient_parsing:
        import sapwood

        click.echo(f"sapwood {sapwood.__version__}")
        context.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def sapwood_command() -> None:
    """A message broker for people who work in Python and Spark."""


def main() -> None:
    if "NO_COLOR" not in os.environ:
        click.Context.formatter_class = ColouredHelp
    sapwood_command(prog_name="sapwood")
