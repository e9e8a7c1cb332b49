"""Fixtures for tests that talk to a running node."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

import sapwood


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--bootstrap",
        metavar="HOST:PORT",
        help="run the judges against this broker; with Apache Kafka this judges the judges",
    )


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


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[sapwood.Cluster]:
    """A node of the test's own, to be killed and started again."""
    with sapwood.Cluster(data_dir=tmp_path / "cluster") as cluster:
        yield cluster
