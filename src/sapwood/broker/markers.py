"""WriteTxnMarkers and DescribeProducers: what partitions are told of transactions, and know."""

import asyncio

from sapwood.broker.refusal import refuse
from sapwood.broker.state import BrokerState
from sapwood.server import Request
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError


async def write_txn_markers(state: BrokerState, request: Request, message: Struct) -> Struct:
    """Only a coordinator decides on transactions, and that is a node.

    A marker names a producer and its epoch, not the transaction that it means: one that was held up
    in the network could end a later transaction. But a node goes on over a newer connection only
    if it has given the older one up, so what still comes over that one is refused.
    """
    node, opened_at = request.connection.node, request.connection.opened_at
    if node is None:
        return _refused(message, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if opened_at < state.markers_over.get(node, opened_at):
        return _refused(message, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    state.markers_over[node] = opened_at
    return Struct(markers=await write_markers(state, message.markers))


async def write_markers(state: BrokerState, markers: list[Struct]) -> list[Struct]:
    """End transactions at partitions that this node leads; the results, when all are committed.

    Takes and gives the items of WriteTxnMarkers.
    """
    under_way: list[asyncio.Future[None]] = []
    results = [
        Struct(
            producer_id=marker.producer_id,
            topics=[
                Struct(
                    name=topic.name,
                    partitions=[
                        _write(state, marker, topic.name, index, under_way)
                        for index in topic.partition_indexes
                    ],
                )
                for topic in marker.topics
            ],
        )
        for marker in markers
    ]
    if under_way:
        await asyncio.wait(under_way)
    return results


def _write(
    state: BrokerState,
    marker: Struct,
    topic: str,
    index: int,
    under_way: list[asyncio.Future[None]],
) -> Struct:
    result = Struct(partition_index=index, error_code=0)
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_committed(error: KafkaError | None) -> None:
        if error is not None:
            result.error_code = int(error.code)
        if not done.done():
            done.set_result(None)

    producer = marker.producer_id, marker.producer_epoch
    try:
        partition = state.partition(topic, b"", index)
        partition.check_enough_replicas()
        partition.end_transaction(
            *producer,
            committed=marker.transaction_result,
            coordinator_epoch=marker.coordinator_epoch,
            now_ms=state.now_ms(),
            on_committed=on_committed,
        )
    except KafkaError as error:
        result.error_code = int(error.code)
        return result
    under_way.append(done)
    # Behind the marker, and in the same turn: a coordinator whose log this is reads on from there.
    state.coordinators.marked(partition, *producer, committed=marker.transaction_result)
    return result


def _refused(message: Struct, code: ErrorCode) -> Struct:
    return Struct(
        markers=[
            Struct(
                producer_id=marker.producer_id,
                topics=[
                    Struct(
                        name=topic.name,
                        partitions=[
                            Struct(partition_index=index, error_code=int(code))
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in message.markers
        ]
    )


def describe_producers(state: BrokerState, request: Request, message: Struct) -> Struct:
    return Struct(
        topics=[
            Struct(
                name=topic.name,
                partitions=[_describe(state, topic.name, it) for it in topic.partition_indexes],
            )
            for topic in message.topics
        ]
    )


def _describe(state: BrokerState, topic: str, index: int) -> Struct:
    result = Struct(partition_index=index, error_code=0, error_message=None, active_producers=[])
    try:
        partition = state.partition(topic, b"", index)
        partition.check_confirmed()
    except KafkaError as error:
        refuse(result, error)
        return result
    log = partition.log
    for producer_id, it in log.producers:
        last = it.batches[-1] if it.batches else None
        first_offset = log.transactions.first_offset(producer_id)
        result.active_producers.append(
            Struct(
                producer_id=producer_id,
                producer_epoch=it.epoch,
                last_sequence=-1 if last is None else last.last_sequence,
                last_timestamp=it.used_ms if last is None else last.timestamp,
                coordinator_epoch=it.coordinator_epoch,
                current_txn_start_offset=-1 if first_offset is None else first_offset,
            )
        )
    return result
