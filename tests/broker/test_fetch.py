from pathlib import Path

import pytest

from sapwood.broker.fetch import check_leader_epoch
from sapwood.raft import Group, Position, Vote, Voter
from sapwood.wire.errors import ErrorCode, KafkaError
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


@on_a_loop
async def test_an_old_epoch_is_refused_by_those_who_know_a_newer_leader_only(
    tmp_path: Path,
) -> None:
    async with started(tmp_path) as it:
        await it.create("led")
        partition = it.broker.state.partition("led", b"", 0)
        epoch = partition.leader_epoch
        with pytest.raises(KafkaError) as refused:
            check_leader_epoch(partition, epoch - 1)
        assert refused.value.code == ErrorCode.FENCED_LEADER_EPOCH
        candidate = Vote(epoch + 1, Voter(1, 0), Position(-1, 0), pre=False)
        partition.tell(Group.vote_asked, it.broker.state.loop_now(), candidate)
        assert not partition.has_leader
        check_leader_epoch(partition, epoch)
        with pytest.raises(KafkaError) as refused:
            check_leader_epoch(partition, epoch + 2)
        assert refused.value.code == ErrorCode.UNKNOWN_LEADER_EPOCH
