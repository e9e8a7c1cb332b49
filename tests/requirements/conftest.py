"""What the rows of the data pipeline share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.spark.killed import Killed


@pytest.fixture(scope="session")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    """Ready-made pipelines whose driver was killed in the middle, and then a node."""
    from tests.spark.killed import killed as kill_pipelines

    with kill_pipelines(tmp_path_factory.mktemp("killed")) as found:
        yield found
