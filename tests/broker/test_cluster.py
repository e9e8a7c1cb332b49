"""What a node tells of topics, as Kafka's Java clients need it."""

from pathlib import Path

import pytest

from sapwood.broker.cluster import CLUSTER_OPERATIONS, TOPIC_OPERATIONS
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode
from tests.broker.asking import on_a_loop, started


@pytest.mark.parametrize("name", [None, ""])
@on_a_loop
async def test_metadata_by_id_is_found_whether_the_name_is_missing_or_empty(
    tmp_path: Path, name: str | None
) -> None:
    async with started(tmp_path) as it:
        await it.create("known")
        topic_id = it.broker.state.image.topics["known"].topic_id
        message = Struct(
            topics=[Struct(name=name, topic_id=wanted) for wanted in (topic_id, b"?" * 16)],
            allow_auto_topic_creation=True,
            include_topic_authorized_operations=False,
        )
        found, unknown = (await it.answer(Api.METADATA, 13, message)).topics
        assert (found.error_code, found.name) == (0, "known")
        assert (unknown.error_code, unknown.name) == (ErrorCode.UNKNOWN_TOPIC_ID, None)


@on_a_loop
async def test_lists_of_eligible_leaders_are_empty_rather_than_missing(tmp_path: Path) -> None:
    async with started(tmp_path) as it:
        await it.create("known")
        message = Struct(topics=[Struct(name="known")], response_partition_limit=10, cursor=None)
        (topic,) = (await it.answer(Api.DESCRIBE_TOPIC_PARTITIONS, 0, message)).topics
        (partition,) = topic.partitions
        assert (partition.eligible_leader_replicas, partition.last_known_elr) == ([], [])
        assert topic.topic_authorized_operations == TOPIC_OPERATIONS


@on_a_loop
async def test_who_asks_what_they_may_do_is_told_everything(tmp_path: Path) -> None:
    async with started(tmp_path) as it:
        await it.create("known")
        for asked in (True, False):
            message = Struct(
                topics=[Struct(name="known", topic_id=bytes(16))],
                allow_auto_topic_creation=False,
                include_topic_authorized_operations=asked,
                include_cluster_authorized_operations=asked,
            )
            answer = await it.answer(Api.METADATA, 10, message)
            told = answer.topics[0].topic_authorized_operations
            assert (told == TOPIC_OPERATIONS) is asked
            assert (answer.cluster_authorized_operations == CLUSTER_OPERATIONS) is asked
