"""`sapwood status`: how the cluster is."""

import sys
from pathlib import Path

import click

from sapwood.cli.connect import directory_option
from sapwood.cli.output import output_option, print_json, print_table, say
from sapwood.node.local import NodeState, default_directory, node_states


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
