"""`python -m sapwood.gateway`: one gateway in this process, as `sapwood up` starts it."""

import argparse
import logging
import sys


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(prog="python -m sapwood.gateway", description=__doc__)
    add = flags.add_argument
    add("--bootstrap", required=True, metavar="HOST:PORT[,…]", help="where the cluster is")
    add("--rest", required=True, metavar="HOST:PORT|FD", help="where to listen for HTTP")
    add("--lines", metavar="HOST:PORT|FD", help="where to listen for the line protocol")
    add("--advertise-lines", metavar="HOST:PORT", help="where other gateways send clients to that")
    add("--node-id", type=int, metavar="N", help="the node beside which this runs")
    add("--announce", action="store_true", help="print one line of JSON to stdout when ready")
    add("--with-parent", action="store_true", help="stop when stdin ends: the parent has gone")
    add("--supervised", action="store_true", help="and the parent can start nodes when asked")
    add("--report", action="store_true", help="write to topics how the cluster is")
    return flags


def main(arguments: list[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
    )
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    from sapwood.gateway.run import Settings, run

    return run(
        Settings(
            bootstrap=given.bootstrap.split(","),
            rest=given.rest,
            lines=given.lines,
            advertise_lines=given.advertise_lines,
            node_id=given.node_id,
            announce=given.announce,
            with_parent=given.with_parent,
            supervised=given.supervised,
            reporting=given.report,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
