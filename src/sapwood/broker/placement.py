"""ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments, AlterReplicaLogDirs.

On a single node every partition is where it can be and led by the only one who can lead it: the
answers say so, and refuse what would need another node.
"""

from collections.abc import Iterable

from sapwood.broker.refusal import refuse
from sapwood.broker.state import BrokerState
from sapwood.metadata.controller import find_topic
from sapwood.server import Request
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError

PREFERRED, UNCLEAN = 0, 1


def _check_exists(state: BrokerState, topic: str, index: int) -> None:
    if not 0 <= index < len(find_topic(state.image, topic).partitions):
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {topic}-{index}"
        )


def elect_leaders(state: BrokerState, request: Request, message: Struct) -> Struct:
    wanted: Iterable[tuple[str, Iterable[int]]]
    if message.topic_partitions is None:
        wanted = [(it.name, range(len(it.partitions))) for it in state.image.topics.values()]
    else:
        wanted = [(it.topic, it.partitions) for it in message.topic_partitions]

    def one(topic: str, index: int) -> Struct:
        result = Struct(partition_id=index, error_code=0, error_message=None)
        try:
            _check_exists(state, topic, index)
            state.partition(topic, b"", index).check_online()
            raise KafkaError(
                ErrorCode.ELECTION_NOT_NEEDED, f"{topic}-{index} is led by its preferred leader"
            )
        except KafkaError as error:
            refuse(result, error)
        return result

    answer = Struct(error_code=0, replica_election_results=[])
    if getattr(message, "election_type", PREFERRED) not in (PREFERRED, UNCLEAN):
        answer.error_code = int(ErrorCode.INVALID_REQUEST)
    else:
        answer.replica_election_results = [
            Struct(topic=topic, partition_result=[one(topic, index) for index in indexes])
            for topic, indexes in wanted
        ]
    return answer


def alter_partition_reassignments(state: BrokerState, request: Request, message: Struct) -> Struct:
    def one(topic: str, wanted: Struct) -> Struct:
        index = wanted.partition_index
        result = Struct(partition_index=index, error_code=0, error_message=None)
        try:
            _check_exists(state, topic, index)
            if wanted.replicas is None:
                raise KafkaError(
                    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{topic}-{index} is not being moved"
                )
            if wanted.replicas != find_topic(state.image, topic).partitions[index]:
                raise KafkaError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"{topic}-{index} can't be on {wanted.replicas}: there are the nodes "
                    f"{sorted(state.image.nodes)}",
                )
        except KafkaError as error:
            refuse(result, error)
        return result

    return Struct(
        error_code=0,
        error_message=None,
        allow_replication_factor_change=getattr(message, "allow_replication_factor_change", True),
        responses=[
            Struct(name=topic.name, partitions=[one(topic.name, it) for it in topic.partitions])
            for topic in message.topics
        ],
    )


def list_partition_reassignments(state: BrokerState, request: Request, message: Struct) -> Struct:
    """None is ever in progress: what can be reassigned is so at once."""
    return Struct(error_code=0, error_message=None, topics=[])


def alter_replica_log_dirs(state: BrokerState, request: Request, message: Struct) -> Struct:
    def one(path: str, topic: str, index: int) -> Struct:
        code = ErrorCode.NONE
        try:
            _check_exists(state, topic, index)
            if path != state.data_dir:
                code = ErrorCode.LOG_DIR_NOT_FOUND
        except KafkaError as error:
            code = error.code
        return Struct(partition_index=index, error_code=int(code))

    return Struct(
        results=[
            Struct(
                topic_name=topic.name,
                partitions=[one(directory.path, topic.name, index) for index in topic.partitions],
            )
            for directory in message.dirs
            for topic in directory.topics
        ]
    )
