"""A node's clock: what it promises holds over restarts, whatever its host's clock shows then."""

import asyncio
from pathlib import Path

from sapwood.disk import OsDisk
from sapwood.log.clock import COUNTER_BITS, FAR_AHEAD_MS, HybridClock
from sapwood.replica.clock import AHEAD, NodeClock
from sapwood.replica.notes import Notes
from tests.replica.test_partition import NOW_MS, on_a_loop

JUMP_MS = 288_000


def clock_at(place: Path, now_ms: int) -> NodeClock:
    return NodeClock(Notes(OsDisk(), str(place / "journal")), lambda: now_ms)


async def reserved(clock: NodeClock) -> None:
    is_done = asyncio.Event()
    clock.on_reserved = is_done.set
    clock.reserve()
    await is_done.wait()


@on_a_loop
async def test_nothing_is_promised_before_the_bound_is_durable(tmp_path: Path) -> None:
    clock = clock_at(tmp_path, NOW_MS)
    clock.now()
    assert clock.promised == 0
    clock.reserve()
    assert clock.promised == 0
    is_done = asyncio.Event()
    clock.on_reserved = is_done.set
    await is_done.wait()
    assert clock.promised == clock.last >= NOW_MS << COUNTER_BITS


@on_a_loop
async def test_after_a_restart_with_a_clock_that_is_back_nothing_promised_is_shown_again(
    tmp_path: Path,
) -> None:
    clock = clock_at(tmp_path, NOW_MS)
    await reserved(clock)
    promised = clock.promised
    again = clock_at(tmp_path, NOW_MS - JUMP_MS)
    assert again.now() > promised
    assert again.promised >= promised


@on_a_loop
async def test_a_promise_never_goes_beyond_the_bound(tmp_path: Path) -> None:
    clock = clock_at(tmp_path, NOW_MS)
    await reserved(clock)
    bound = clock.promised + AHEAD
    clock.observe(bound + AHEAD)
    assert clock.promised <= bound < clock.last
    await reserved(clock)
    assert clock.promised == clock.last


def test_a_client_is_believed_within_reason() -> None:
    clock = HybridClock()
    wall_ms = NOW_MS
    clock.hear((wall_ms + JUMP_MS) << COUNTER_BITS, wall_ms)
    assert clock.last == (wall_ms + JUMP_MS) << COUNTER_BITS
    clock.hear((wall_ms + FAR_AHEAD_MS + 1) << COUNTER_BITS, wall_ms)
    clock.hear(2**63 - 1, wall_ms)
    assert clock.last == (wall_ms + JUMP_MS) << COUNTER_BITS
