from pathlib import Path

from sapwood.wire.errors import ErrorCode
from tests.broker.asking import on_a_loop, started


@on_a_loop
async def test_an_error_comes_without_offsets_as_kafka_has_it(tmp_path: Path) -> None:
    async with started(tmp_path) as it:
        await it.create("short")
        await it.produced("short")
        found = await it.fetch("short", 0)
        beyond = await it.fetch("short", 2)
    assert (found.error_code, found.high_watermark, found.log_start_offset) == (0, 1, 0)
    assert beyond.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (beyond.high_watermark, beyond.last_stable_offset, beyond.log_start_offset) == (
        -1,
        -1,
        -1,
    )
