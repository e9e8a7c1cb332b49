"""How commands that look after a cluster reach its nodes: with the secret, one node at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from sapwood.cli import CommandFailed
from sapwood.cli.connect import find_bootstrap

if TYPE_CHECKING:
    from sapwood.node.asking import NodeConnection

secret_file_option = click.option(
    "--secret-file",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="SAPWOOD_SECRET_FILE",
    help="The cluster's secret.  [default: that of the cluster that you run on this machine]",
)


class Access(NamedTuple):
    """Where a cluster's nodes are, and what makes them listen."""

    addresses: Sequence[str]
    secret: bytes

    def to(self, address: str) -> NodeConnection:
        from sapwood.node.asking import NodeConnection

        return NodeConnection(address, self.secret)

    def to_any(self) -> NodeConnection:
        """The first node that answers."""
        return first_answer(self.addresses, self.secret)

    def to_node(self, node_id: int) -> NodeConnection:
        with self.to_any() as connection:
            return self.to(address_of(connection.status(), node_id))


def first_answer(addresses: Sequence[str], secret: bytes | None) -> NodeConnection:
    from sapwood.node.asking import NoAnswer, NodeConnection

    reasons = []
    for address in addresses:
        try:
            return NodeConnection(address, secret)
        except NoAnswer as error:
            reasons.append(str(error))
    raise CommandFailed(f"no node answers: {'; '.join(reasons)}: is Sapwood up?")


def address_of(status: Any, node_id: int) -> str:
    """Where a node of the cluster is, as another one says."""
    from sapwood.node.ready import join_address

    for node in status.nodes:
        if node.node_id == node_id:
            return join_address(node.host, node.port)
    known = ", ".join(str(node.node_id) for node in status.nodes)
    raise CommandFailed(f"the cluster has no node {node_id}: it has {known}")


def access(bootstrap: str | None, secret_file: Path | None) -> Access:
    """To the cluster that was named, else to the one of this machine."""
    from sapwood.node import discovery, secret
    from sapwood.node.local import default_directory

    addresses = find_bootstrap(bootstrap).split(",")
    try:
        if secret_file is not None:
            return Access(addresses, secret.read(secret_file))
        clusters = discovery.running_clusters()
        for cluster in clusters:
            if set(cluster.addresses) & set(addresses):
                return Access(addresses, secret.read(Path(cluster.entries[0].secret_file)))
        if len(clusters) == 1 and bootstrap is None:
            (cluster,) = clusters
            return Access(cluster.addresses, secret.read(Path(cluster.entries[0].secret_file)))
        if (default_directory() / secret.FILE_NAME).exists():
            return Access(addresses, secret.read(default_directory() / secret.FILE_NAME))
    except (secret.SecretUnusable, discovery.NotPrivate) as error:
        raise CommandFailed(str(error)) from error
    raise CommandFailed(
        "this needs the cluster's secret, which lies in the data directory of each node: "
        "say where with --secret-file"
    )
