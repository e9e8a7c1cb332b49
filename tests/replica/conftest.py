import asyncio
import gc
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.server.peer import Run, loop_factories


@pytest.fixture(params=loop_factories(), ids=lambda factory: factory.__module__.split(".")[0])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a coroutine to its end, once per kind of event loop."""

    def run(coroutine: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(coroutine)
        gc.collect()  # what was left open says so here

    return run
