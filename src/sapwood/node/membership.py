"""Who this node is, settled before anything of it runs: restarted, founding, or about to join."""

import logging
from dataclasses import dataclass, field
from pathlib import Path

from sapwood.disk import JournalCorrupt
from sapwood.node import discovery, identity, ready, secret
from sapwood.node.config import NodeConfig
from sapwood.node.identity import Identity, IdentityUnusable
from sapwood.node.secret import SecretUnusable

logger = logging.getLogger("sapwood.node")


class NoMembership(Exception):
    """The node can't tell which cluster it belongs to; says what to do."""


@dataclass(frozen=True, slots=True)
class Member:
    """A node that knows who it is."""

    identity: Identity
    secret_file: Path
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A node that has yet to ask a cluster to take it in, at any of these addresses."""

    addresses: list[str]
    secret_file: Path
    secret: bytes = field(repr=False)


def settle(config: NodeConfig, directory: Path) -> Member | Newcomer:
    """From the data directory, else from what was asked for, else from what runs on this host."""
    try:
        return _settle(config, directory)
    except (
        IdentityUnusable,
        SecretUnusable,
        discovery.NotPrivate,
        JournalCorrupt,
    ) as error:
        raise NoMembership(str(error)) from error


def _settle(config: NodeConfig, directory: Path) -> Member | Newcomer:
    secret_file = Path(config.secret_file or directory / secret.FILE_NAME).absolute()
    known = identity.read(directory)
    if known is not None:
        if config.node_id not in (None, known.node_id):
            raise NoMembership(
                f"{directory} belongs to node {known.node_id}, not to node {config.node_id}"
            )
        return Member(known, secret_file, secret.read(secret_file))
    was_founded = identity.founded_before(directory)
    if was_founded and config.join:
        raise NoMembership(
            f"{directory} holds the data of a cluster of its own, which would be lost by joining "
            "another: give an empty directory"
        )
    if was_founded or config.bootstrap:
        # The secret first: with an identity a node is restarted, and then it must be there.
        shared = secret.ensure(secret_file)
        incarnation = identity.OLD_INCARNATION if was_founded else identity.new_incarnation()
        founder = identity.found(config.node_id or 0, incarnation)
        identity.write(directory, founder)
        return Member(founder, secret_file, shared)
    if config.join:
        if not secret_file.exists() and not config.secret_file:
            _borrow_secret(config.join, secret_file)
        return Newcomer(config.join, secret_file, secret.read(secret_file))
    return _discovered(secret_file)


def _discovered(secret_file: Path) -> Newcomer:
    clusters = discovery.running_clusters()
    if not clusters:
        raise NoMembership(
            "no cluster of this user runs on this host: found one with --bootstrap, "
            "or join one elsewhere with --join HOST:PORT"
        )
    if len(clusters) > 1:
        raise NoMembership(
            "several clusters run on this host, choose one with --join HOST:PORT: "
            + "; ".join(map(str, clusters))
        )
    (cluster,) = clusters
    logger.info("found the cluster %s on this host", cluster)
    if not secret_file.exists():
        secret.write(secret_file, secret.read(Path(cluster.entries[0].secret_file)))
    return Newcomer(cluster.addresses, secret_file, secret.read(secret_file))


def _borrow_secret(addresses: list[str], secret_file: Path) -> None:
    """Copy the secret of a node that this user runs on this host, if that is whom we join."""
    wanted = [ready.local_address(address) for address in addresses]
    for cluster in discovery.running_clusters():
        for entry in cluster.entries:
            if entry.address in wanted:
                secret.write(secret_file, secret.read(Path(entry.secret_file)))
                return
