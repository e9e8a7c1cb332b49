"""Which broker a command talks to, and how patient it is with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from sapwood.client import AsyncKafkaClient, Client, KafkaClient

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"

bootstrap_option = click.option(
    "-b",
    "--bootstrap",
    metavar="HOST:PORT[,…]",
    envvar="SAPWOOD_BOOTSTRAP",
    help=f"Where the cluster is.  [default: what `sapwood up` started, else {DEFAULT_BOOTSTRAP}]",
)

directory_option = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the data lies.  [default: $SAPWOOD_DIR or ~/.sapwood]",
)

# People wait at the other end: a cluster that isn't there is reported soon.
_PATIENCE: dict[str, Any] = {
    "bootstrap_timeout_ms": 2_000,
    "topic_wait_ms": 3_000,
    "api_timeout_ms": 30_000,
}
PATIENCE_AT_A_PROMPT = {"bootstrap_timeout_ms": 500, "api_timeout_ms": 500}


def find_bootstrap(given: str | None) -> str:
    return given or _local_bootstrap() or DEFAULT_BOOTSTRAP


def client_for(bootstrap: str | None, **options: Any) -> KafkaClient:
    from sapwood.client import KafkaClient

    with _usage():
        return KafkaClient(find_bootstrap(bootstrap), **{**_PATIENCE, **options})


def async_client_for(bootstrap: str | None, **options: Any) -> AsyncKafkaClient:
    from sapwood.client import AsyncKafkaClient

    with _usage():
        return AsyncKafkaClient(find_bootstrap(bootstrap), **{**_PATIENCE, **options})


def messenger_for(bootstrap: str | None, client_id: str | None = None) -> Client:
    """For put and get."""
    from sapwood.client import Client

    with _usage():
        return Client(find_bootstrap(bootstrap), client_id, **_PATIENCE)


class _usage:  # noqa: N801 - reads as a statement
    """An address or an option that the client refuses is the user's to mend."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, ValueError):
            raise click.UsageError(str(error)) from error


def _local_bootstrap() -> str | None:
    from sapwood.node.local import default_directory, node_states

    states = node_states(default_directory())
    return ",".join(each.addresses["kafka"] for each in states if "kafka" in each.addresses) or None


def complete_topic(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str]:
    """For the shell: the topics there are; nothing if the cluster doesn't answer at once."""
    try:
        with client_for(context.params.get("bootstrap"), **PATIENCE_AT_A_PROMPT) as client:
            return sorted(name for name in client.metadata().topics if name.startswith(incomplete))
    except Exception:  # the user is typing: no error is worth interrupting that
        return []


topic_argument = click.argument("topic", shell_complete=complete_topic)
