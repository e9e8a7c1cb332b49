"""`python -m sapwood.node`: one node in this process."""

import argparse
import sys

from sapwood.node.config import ConfigError, load


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(prog="python -m sapwood.node", description=__doc__)
    add = flags.add_argument
    add("--config", metavar="FILE", help="settings in TOML")
    add("--id", type=int, metavar="N", help="this node's id")
    add("--dir", metavar="DIR", help="where this node keeps its data")
    add("--listen", action="append", metavar="[NAME=]HOST:PORT", help="may be repeated")
    add("--port", type=int, help="listen at 127.0.0.1:PORT; 0 takes a free one")
    add("--advertise", action="append", metavar="[NAME=]HOST:PORT", help="what clients are told")
    add("--bootstrap", action="store_true", default=None, help="found a cluster")
    add("--join", action="append", metavar="HOST:PORT", help="join the cluster of this node")
    add("--edge", action="store_true", default=None, help="relay, and hold no replica")
    add("--parent", metavar="HOST:PORT", help="whom an edge hangs from")
    add("--outbox", action="store_true", default=None, help="an edge keeps what it can't send")
    add("--secret-file", metavar="FILE", help="where the cluster's secret lies")
    add("--rack", help="where this node stands, so that copies are kept apart")
    add("--auto-create", action=argparse.BooleanOptionalAction, default=None)
    add("--log-level", choices=["debug", "info", "warning", "error"])
    add("--log-format", choices=["console", "json"])
    add("--set", action="append", metavar="KEY=VALUE", help="any setting or Kafka broker config")
    add("--announce", action="store_true", help="print one line of JSON to stdout when ready")
    add("--with-parent", action="store_true", help="stop when stdin ends: the parent has gone")
    return flags


def main(arguments: list[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    listen = list(given.listen or [])
    if given.port is not None:
        listen.append(f"127.0.0.1:{given.port}")
    try:
        config = load(
            given.config,
            node_id=given.id,
            data_dir=given.dir,
            listen=listen,
            advertise=given.advertise or (),
            bootstrap=given.bootstrap,
            join=given.join or (),
            edge=given.edge,
            parent=given.parent,
            outbox=given.outbox,
            secret_file=given.secret_file,
            rack=given.rack,
            auto_create_topics=given.auto_create,
            log_level=given.log_level,
            log_format=given.log_format,
            settings=given.set or (),
        )
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    # The broker's modules take a while to import; a wrong flag shouldn't wait for them.
    from sapwood.node.shell import run

    return run(config, announce=given.announce, with_parent=given.with_parent)


if __name__ == "__main__":
    sys.exit(main())
