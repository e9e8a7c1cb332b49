"""Fixtures for tests that talk to a running node."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import sapwood

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--bootstrap",
        metavar="HOST:PORT",
        help="run the judges against this broker; with Apache Kafka this judges the judges",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Let the processes that tests start be interrupted, as those of people are.

    Whoever runs the tests in the background, or detached from a terminal, has these ignored.
    """
    for name in ("SIGINT", "SIGQUIT", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_IGN:
            is_interrupt = number is signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_interrupt else signal.SIG_DFL)


SPARKS = {
    "tests that share a Spark": (
        "tests/spark/test_archiving.py",
        "tests/spark/test_audit.py",
        "tests/spark/test_classes.py",
        "tests/spark/test_pipelines_frames.py",
        "tests/spark/test_rollup.py",
        "tests/requirements/test_p1",
        "tests/requirements/test_p3",
        "tests/requirements/test_p8",
    ),
    "tests that start their own": (
        "tests/requirements/test_p",  # which aren't above
        "tests/spark/test_bad_input.py",
    ),
}
"""Each in one process, so that no more Sparks than these run at once.

A Spark keeps two cores busy while it starts; other tests mostly wait.
"""

LONGEST = (
    *(start for starts in SPARKS.values() for start in starts),
    "tests/faults/test_churn.py",
    "tests/sim/test_groups.py",
    "tests/replica/test_peers.py",
    "tests/chaos/test_runs.py",
    "tests/requirements/test_d7_misbehaving_clients.py",
    "tests/requirements/test_k4_newer_groups.py",
    "tests/replica/test_peer_loss.py",
    "tests/node/test_run.py",
    "tests/cli/test_up.py",
    "tests/cli/test_up_three.py",
    "tests/faults/test_every_api.py",
)
"""They come first when tests run side by side: no worker is to be left with one at the end."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    starts = enumerate(LONGEST)
    return next((rank for rank, it in starts if item.nodeid.startswith(it)), len(LONGEST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A worker takes whole files, and at once all that are not to run side by side."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            sparks = (name for name, starts in SPARKS.items() if nodeid.startswith(starts))
            scope: str = next(sparks, None) or super()._split_scope(nodeid)
            return scope

    return Scheduling(config, log)


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the clients that a folder's tests have dropped.

    Until they are collected they go on knocking where their broker was, and by then another test
    may listen there.
    """
    if nextitem is not None and nextitem.path.parent != item.path.parent:
        gc.collect()


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> str:
    """The address of a node that all tests share and none hurts."""
    if given := request.config.getoption("--bootstrap"):
        return str(given)
    return str(request.getfixturevalue("sapwood").bootstrap)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Real Spark on two threads. It isn't told about Sapwood: it has to find it by itself."""
    from tests.spark.session import quick_session

    session = quick_session("tests", tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[sapwood.Cluster]:
    """A node of the test's own, to be killed and started again."""
    with sapwood.Cluster(data_dir=tmp_path / "cluster") as cluster:
        yield cluster
