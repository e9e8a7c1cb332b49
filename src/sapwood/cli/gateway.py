"""`sapwood gateway`: REST and lines in front of a cluster, from wherever it can be reached."""

import sys

import click

from sapwood.cli.connect import bootstrap_option, find_bootstrap
from sapwood.cli.logs import log_level_option

DEFAULT_REST = "127.0.0.1:8080"
DEFAULT_LINES = "127.0.0.1:7000"


@click.command()
@bootstrap_option
@click.option(
    "--rest",
    metavar="HOST:PORT",
    default=DEFAULT_REST,
    show_default=True,
    help="Where to listen for HTTP; port 0 takes a free one.",
)
@click.option(
    "--lines",
    metavar="HOST:PORT",
    default=DEFAULT_LINES,
    show_default=True,
    help="Where to listen for the line protocol.",
)
@click.option(
    "--advertise-lines",
    metavar="HOST:PORT",
    help="Where other gateways send clients of the line protocol.  [default: as --lines]",
)
@click.option("--announce", is_flag=True, help="Print one line of JSON when ready.")
@log_level_option
def gateway(
    bootstrap: str | None, rest: str, lines: str, advertise_lines: str | None, announce: bool
) -> None:
    """Serve REST and the line protocol in front of a cluster.

    It knows who leads and asks them; whoever asks here needs to know nothing of that. `sapwood up`
    starts one beside each of its nodes.
    """
    from sapwood.gateway.run import Settings, run

    addresses = find_bootstrap(bootstrap).split(",")
    settings = Settings(
        bootstrap=addresses,
        rest=rest,
        lines=lines,
        advertise_lines=advertise_lines,
        announce=announce,
    )
    sys.exit(run(settings))
