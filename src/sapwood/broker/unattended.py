"""Work that a request began and that goes on to its end, even if whoever asked goes away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")


def to_its_end(work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
    """What comes of it; cancelling that leaves the work alone."""
    task = asyncio.ensure_future(work)
    answer = asyncio.shield(task)

    def ended(task: asyncio.Task[T]) -> None:
        # A failure is told to whoever waits. Once nobody does, `shield` doesn't look any more.
        if answer.cancelled() and not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a request failed after its connection had gone", exc_info=error)

    task.add_done_callback(ended)
    return answer
