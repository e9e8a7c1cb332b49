"""Who leads and where replicas are, on a node that has nobody to share with."""

from pathlib import Path

from sapwood.metadata.controller import METADATA_TOPIC
from sapwood.raft import Elected, Progress, Voter
from sapwood.raft.progress import LONGEST_SILENCE_MS, LastWord
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode
from tests.broker.asking import on_a_loop, started


@on_a_loop
async def test_nobody_needs_to_be_elected_where_the_preferred_leader_leads(tmp_path: Path) -> None:
    async with started(tmp_path) as it:
        await it.create("led", partitions=2)
        wanted = [Struct(topic="led", partitions=[1, 2]), Struct(topic="none", partitions=[0])]
        message = Struct(election_type=0, topic_partitions=wanted)
        answer = await it.answer(Api.ELECT_LEADERS, 2, message)
        led, unknown = answer.replica_election_results
        assert [(p.partition_id, p.error_code) for p in led.partition_result] == [
            (1, ErrorCode.ELECTION_NOT_NEEDED),
            (2, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        assert unknown.partition_result[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        all_of_them = Struct(election_type=0, topic_partitions=None)
        (led,) = (await it.answer(Api.ELECT_LEADERS, 2, all_of_them)).replica_election_results
        assert [p.partition_id for p in led.partition_result] == [0, 1]
        bad = Struct(election_type=9, topic_partitions=None)
        answer = await it.answer(Api.ELECT_LEADERS, 2, bad)
        assert answer.error_code == ErrorCode.INVALID_REQUEST


@on_a_loop
async def test_a_partition_may_stay_where_it_is_and_go_nowhere_else(tmp_path: Path) -> None:
    async with started(tmp_path) as it:
        await it.create("placed", partitions=4)
        wanted = [
            Struct(partition_index=index, replicas=replicas)
            for index, replicas in enumerate([[0], [7], [], None, [0]])
        ]
        message = Struct(topics=[Struct(name="placed", partitions=wanted)])
        (topic,) = (await it.answer(Api.ALTER_PARTITION_REASSIGNMENTS, 1, message)).responses
        assert [partition.error_code for partition in topic.partitions] == [
            ErrorCode.NONE,
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        listed = await it.answer(Api.LIST_PARTITION_REASSIGNMENTS, 0, Struct(topics=None))
        assert (listed.error_code, listed.topics) == (0, [])


@on_a_loop
async def test_a_replica_may_stay_in_the_only_log_directory(tmp_path: Path) -> None:
    async with started(tmp_path) as it:
        await it.create("kept")
        here = it.broker.state.data_dir
        message = Struct(
            dirs=[
                Struct(path=here, topics=[Struct(name="kept", partitions=[0, 1])]),
                Struct(path="/elsewhere", topics=[Struct(name="kept", partitions=[0])]),
            ]
        )
        results = (await it.answer(Api.ALTER_REPLICA_LOG_DIRS, 2, message)).results
        assert [p.error_code for result in results for p in result.partitions] == [
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.LOG_DIR_NOT_FOUND,
        ]


@on_a_loop
async def test_the_quorum_is_told_with_listeners_in_capitals_as_java_wants_them(
    tmp_path: Path,
) -> None:
    async with started(tmp_path) as it:
        wanted = Struct(topic_name="__cluster_metadata", partitions=[Struct(partition_index=0)])
        answer = await it.answer(Api.DESCRIBE_QUORUM, 2, Struct(topics=[wanted]))
        (partition,) = answer.topics[0].partitions
        assert (partition.error_code, partition.leader_id) == (0, 0)
        assert [listener.name for listener in answer.nodes[0].listeners] == ["KAFKA"]


@on_a_loop
async def test_a_quorum_is_described_whose_follower_has_just_been_lost(tmp_path: Path) -> None:
    async with started(tmp_path) as it:
        partition = it.broker.state.store.partition
        role = partition.group.role
        assert isinstance(role, Elected)
        role.progress[Voter(1, 7)] = Progress(LastWord(float("-inf")))
        wanted = Struct(topic_name=METADATA_TOPIC, partitions=[Struct(partition_index=0)])
        answer = await it.answer(Api.DESCRIBE_QUORUM, 2, Struct(topics=[wanted]))
        (described,) = answer.topics[0].partitions
        (lost,) = described.observers
        assert (lost.replica_id, lost.last_fetch_timestamp) == (1, -1)
        (status,) = (
            await it.answer(Api.DESCRIBE_REPLICAS, 0, Struct(topics=[METADATA_TOPIC]))
        ).groups
        assert status.followers[0].heard_ms == LONGEST_SILENCE_MS
