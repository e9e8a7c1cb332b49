"""Fixtures for tests that talk to a running node."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import sapwood
from tests.helpers import NodeProcess


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--bootstrap",
        metavar="HOST:PORT",
        help="run the judges against this broker; with Apache Kafka this judges the judges",
    )


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a node that all tests share and none hurts."""
    if given := request.config.getoption("--bootstrap"):
        yield str(given)
        return
    with sapwood.Cluster() as cluster:
        yield cluster.bootstrap


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node of the test's own, to be killed, filled up and fed rubbish."""
    with NodeProcess(tmp_path / "node") as process:
        yield process
