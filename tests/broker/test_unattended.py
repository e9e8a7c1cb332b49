"""Work of a request whose connection may go: it goes on, and its failure is told to somebody."""

import asyncio
import gc
from typing import Any

import pytest

from sapwood.broker.unattended import to_its_end
from tests.broker.asking import on_a_loop


async def after(gate: asyncio.Event, done: list[str], error: Exception | None) -> str:
    await gate.wait()
    done.append("done")
    if error is not None:
        raise error
    return "answer"


def unheard() -> list[dict[str, Any]]:
    """What asyncio complains about from now on."""
    complaints: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: complaints.append(context))
    return complaints


@on_a_loop
async def test_whoever_waits_gets_the_answer_or_the_failure_and_nobody_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate, done = asyncio.Event(), list[str]()
    answer = to_its_end(after(gate, done, None))
    failure = to_its_end(after(gate, done, OSError("no disk")))
    gate.set()
    assert await answer == "answer"
    with pytest.raises(OSError, match="no disk"):
        await failure
    assert caplog.records == []


@on_a_loop
async def test_work_goes_on_when_nobody_waits_and_its_failure_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    complaints = unheard()
    gate, done = asyncio.Event(), list[str]()
    for error in (None, OSError("no disk")):
        to_its_end(after(gate, done, error)).cancel()
    await asyncio.sleep(0)
    gate.set()
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
    gc.collect()
    assert done == ["done", "done"]
    (record,) = caplog.records
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "no disk"
    assert complaints == []
