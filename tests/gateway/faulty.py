"""A gateway whose handlers fail: `python -m tests.gateway.faulty` instead of `sapwood.gateway`.

A few calls in a hundred raise what nobody foresaw, fail as the cluster does when it is busy, are
slow, or never come to an end. What they were asked may have been done by then, or not.
"""

import asyncio
import contextlib
import functools
import random
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from sapwood.client import ErrorCode, KafkaError
from sapwood.gateway import app
from sapwood.gateway.__main__ import main
from sapwood.gateway.routes import ROUTES

RAISES, FAILS, IS_SLOW, HANGS = 0.02, 0.03, 0.03, 0.002
SLOW_S = 1.0
chance = random.Random(6)


class InjectedFault(Exception):
    """What no handler foresees."""


def faulty(handler: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(handler)
    async def handle(*arguments: Any, **more: Any) -> Any:
        drawn = chance.random()
        is_late = chance.random() < 0.5
        if is_late and drawn < RAISES + FAILS:
            await handler(*arguments, **more)
        if drawn < RAISES:
            raise InjectedFault("drawn by chance")
        if drawn < RAISES + FAILS:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "drawn by chance")
        if drawn < RAISES + FAILS + IS_SLOW:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), SLOW_S)
        elif drawn < RAISES + FAILS + IS_SLOW + HANGS:
            await asyncio.Event().wait()
        return await handler(*arguments, **more)

    return handle


if __name__ == "__main__":
    table = [route._replace(handler=faulty(route.handler)) for route in ROUTES]
    setattr(app, "ROUTES", table)  # noqa: B010 - it isn't made for that
    sys.exit(main())
