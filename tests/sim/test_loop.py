"""The loop: virtual time, a fixed order, and processes that can be held and killed."""

import asyncio
import gc

import pytest

from sim.loop import (
    PROCESS,
    START_S,
    CallbackFailed,
    Livelocked,
    Process,
    SimLoop,
    Stalled,
    TooLate,
)


def made() -> SimLoop:
    return SimLoop()  # type: ignore[abstract]


def test_time_jumps_to_the_next_timer() -> None:
    loop = made()
    seen: list[tuple[str, int]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append((name, round(loop.elapsed())))

    async def main() -> None:
        await asyncio.gather(sleeper("late", 86_400), sleeper("early", 60), sleeper("first", 0))

    loop.run_until_complete(main())
    assert seen == [("first", 0), ("early", 60), ("late", 86_400)]
    assert loop.time() == pytest.approx(START_S + 86_400, abs=1)


def test_callbacks_run_in_the_order_in_which_they_became_due() -> None:
    loop = made()
    seen: list[int] = []
    for number in range(3):
        loop.call_later(1.0, seen.append, number)
    loop.call_soon(seen.append, -1)
    cancelled = loop.call_later(0.5, seen.append, 99)
    cancelled.cancel()
    loop.run_until(lambda: len(seen) == 4)
    assert seen == [-1, 0, 1, 2]


def test_what_a_callback_or_a_forgotten_task_raises_ends_the_run() -> None:
    loop = made()
    loop.call_soon(int, "no number")
    with pytest.raises(CallbackFailed, match="ValueError"):
        loop.run_until(lambda: False)

    async def fails() -> None:
        raise ValueError("unseen")

    loop = made()
    loop.create_task(fails())
    loop.close()  # not run: nobody is told
    loop = made()
    tasks = [loop.create_task(fails())]
    loop.call_later(1, tasks.clear)
    loop.call_later(2, gc.collect)
    with pytest.raises(CallbackFailed, match="unseen"):
        loop.run_until(lambda: loop.elapsed() > 3)


def test_a_wait_for_what_can_never_happen_is_noticed() -> None:
    loop = made()
    with pytest.raises(Stalled):
        loop.run_until_complete(loop.create_future())
    loop.call_later(10, print)
    with pytest.raises(TooLate):
        loop.run_until(lambda: False, within_s=5)
    assert loop.elapsed() == pytest.approx(5)


def test_callbacks_that_go_on_without_time_passing_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sim.loop.MOST_EVENTS", 1000)

    def again() -> None:
        loop.call_soon(again)

    loop = made()
    loop.call_soon(again)
    with pytest.raises(Livelocked):
        loop.run_until(lambda: False)


def counter(counts: list[float], every_s: float) -> "asyncio.Future[None]":
    async def count() -> None:
        try:
            while True:
                await asyncio.sleep(every_s)
                counts.append(asyncio.get_running_loop().time() - START_S)
        finally:
            counts.append(-1.0)

    return PROCESS.get().spawn(count())


def test_a_paused_process_stands_still_and_then_goes_on_where_it_was() -> None:
    loop = made()
    process, other = Process(loop, "a", "host"), Process(loop, "b", "host")
    counts: list[float] = []
    others: list[float] = []
    process.context.run(counter, counts, 1.0)
    other.context.run(counter, others, 1.0)
    loop.run_until(lambda: len(others) == 2)
    process.pause()
    process.stall(3.0)  # the longer of the two counts
    loop.run_until(lambda: len(others) == 4)
    process.resume()
    loop.run_until(lambda: len(others) == 8)
    rounded = [round(it) for it in counts]
    assert rounded[:4] == [1, 2, 5, 6]
    loop.close()


def test_a_dead_process_runs_nothing_any_more() -> None:
    loop = made()
    process = Process(loop, "a", "host")
    counts: list[float] = []
    ends: list[str] = []
    process.at_end.append(lambda: ends.append("closed"))
    process.context.run(counter, counts, 1.0)
    loop.call_later(2.5, process.kill)
    loop.call_later(10, lambda: None)
    loop.run_until(lambda: loop.elapsed() > 9)
    # Its coroutine is closed at once, so that no collection of memory does it at a later moment.
    assert [round(it) for it in counts] == [1, 2, -1]
    assert ends == ["closed"]


def test_a_future_that_another_process_settles_wakes_its_owner_in_its_own_name() -> None:
    loop = made()
    a, b = Process(loop, "a", "host"), Process(loop, "b", "host")
    seen: list[str] = []

    async def wait(future: "asyncio.Future[None]") -> None:
        await future
        seen.append(PROCESS.get().name)

    future = loop.create_future()
    task = a.spawn(wait(future))
    loop.call_soon(future.set_result, None, context=b.context.copy())
    loop.run_until(task.done)
    assert seen == ["a"]


def test_closing_a_loop_leaves_nothing_that_complains_later() -> None:
    loop = made()
    process = Process(loop, "a", "host")
    counts: list[float] = []
    process.context.run(counter, counts, 1.0)
    loop.run_until(lambda: len(counts) == 3)
    loop.close()
    del process
    gc.collect()
    assert counts[-1] == -1.0
