"""Transactions: identities for producers, what belongs to one, and how it ends."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence

from sapwood.broker.coordinating import Kind
from sapwood.broker.leading import current_leader
from sapwood.broker.refusal import refuse
from sapwood.broker.settling import Settling
from sapwood.broker.state import BrokerState
from sapwood.broker.topics import create_missing
from sapwood.coordinator.effects import Answer, Effect
from sapwood.coordinator.sharding import SEPARATOR
from sapwood.coordinator.transaction import ProducerIdWanted, State, TopicPartition
from sapwood.coordinator.transactions import Limits, OutdatedConnection, Transactions
from sapwood.metadata.controller import (
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    check_not_internal,
    check_partition,
    find_topic,
)
from sapwood.replica import PeerUnreachable
from sapwood.server import Request
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError

FIRST_OF_NODES = 4
"""From this version on AddPartitionsToTxn is what nodes ask each other."""
FIRST_ABORTABLE = 5
FIRST_FENCED = {
    Api.INIT_PRODUCER_ID: 4,
    Api.ADD_PARTITIONS_TO_TXN: 2,
    Api.ADD_OFFSETS_TO_TXN: 2,
    Api.END_TXN: 2,
}
"""The versions whose clients know PRODUCER_FENCED."""
VERIFY_S = 2.0

_Question = Callable[[Transactions, object, int], Sequence[Effect]]


def begin(state: BrokerState) -> Settling:
    """Coordinate transactions, in the shards that this node leads."""
    settling = Settling(state)
    state.verifying.verify = functools.partial(verify, state)

    def machine(_: int) -> Transactions:
        limits = Limits(
            max_timeout_ms=int(state.broker_config("transaction.max.timeout.ms")),
            expiration_ms=int(state.broker_config("transactional.id.expiration.ms")),
        )
        return Transactions(limits, state.transaction_counters, state.loop_now())

    state.coordinators.add(Kind(TRANSACTIONS_TOPIC, machine, settling.carry_out))
    return settling


async def _ask(state: BrokerState, transactional_id: str, question: _Question) -> Struct:
    return await state.coordinators.shard(TRANSACTIONS_TOPIC, transactional_id).ask(question)


def _code(request: Request, error: KafkaError) -> int:
    """What this client is told; one on an outdated connection has to come over another."""
    if isinstance(error, OutdatedConnection):
        request.connection.finish()
    header = request.header
    first = FIRST_FENCED.get(Api(header.api_key), 0)
    if error.code is ErrorCode.PRODUCER_FENCED and header.api_version < first:
        return int(ErrorCode.INVALID_PRODUCER_EPOCH)
    return int(error.code)


# -- identities --------------------------------------------------------------------------------


async def init_producer_id(state: BrokerState, request: Request, message: Struct) -> Struct:
    answer = Struct(error_code=0, producer_id=-1, producer_epoch=-1)
    try:
        if message.transactional_id is None:
            answer.producer_id = await state.producer_ids.take()
            answer.producer_epoch = 0
            return answer
        try:
            return await _identify(state, request, message, None)
        except ProducerIdWanted:
            fresh_id = await state.producer_ids.take()
            return await _identify(state, request, message, fresh_id)
    except KafkaError as error:
        answer.error_code = _code(request, error)
    return answer


async def _identify(
    state: BrokerState, request: Request, message: Struct, fresh_id: int | None
) -> Struct:
    opened_at = request.connection.opened_at
    return await _ask(
        state,
        message.transactional_id,
        lambda machine, token, now_ms: machine.init_producer_id(
            token, message, now_ms, opened_at, fresh_id
        ),
    )


# -- what belongs to a transaction -------------------------------------------------------------


async def add_partitions(state: BrokerState, request: Request, message: Struct) -> Struct:
    version = request.header.api_version
    if version >= FIRST_OF_NODES:
        if request.connection.node is None:
            code = int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            return Struct(error_code=code, results_by_transaction=[])
        results = [await _of_a_node(state, version, it) for it in message.transactions]
        return Struct(error_code=0, results_by_transaction=results)
    producer = Struct(
        transactional_id=message.v3_and_below_transactional_id,
        producer_id=message.v3_and_below_producer_id,
        producer_epoch=message.v3_and_below_producer_epoch,
    )
    wanted = _partitions(message.v3_and_below_topics)
    codes = {it: code for it in wanted if (code := _why_not(state, it))}
    if codes:
        codes = {it: codes.get(it, int(ErrorCode.OPERATION_NOT_ATTEMPTED)) for it in wanted}
    else:
        code = await _add(state, request, producer, wanted)
        codes = dict.fromkeys(wanted, code)
    return Struct(results_by_topic_v3_and_below=_by_topic(message.v3_and_below_topics, codes))


async def add_offsets(state: BrokerState, request: Request, message: Struct) -> Struct:
    """The group's positions are a partition like any other."""
    try:
        if OFFSETS_TOPIC not in state.image.topics:
            await create_missing(state, [OFFSETS_TOPIC])
        topic, index = state.coordinators.place(OFFSETS_TOPIC, message.group_id)
    except KafkaError as error:
        return Struct(error_code=int(error.code))
    return Struct(error_code=await _add(state, request, message, [(topic.name, index)]))


async def _add(
    state: BrokerState, request: Request, producer: Struct, partitions: list[TopicPartition]
) -> int:
    opened_at = request.connection.opened_at
    try:
        await _ask(
            state,
            producer.transactional_id,
            lambda machine, token, now_ms: machine.add_partitions(
                token, producer, partitions, now_ms, opened_at
            ),
        )
    except KafkaError as error:
        return _code(request, error)
    return 0


async def _of_a_node(state: BrokerState, version: int, transaction: Struct) -> Struct:
    """What a node asks: whether partitions belong to the transaction. It never adds any."""
    wanted = _partitions(transaction.topics)
    codes = dict.fromkeys(wanted, 0)
    try:
        if not transaction.verify_only:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Partitions are added by producers only")
        answer = await _ask(
            state,
            transaction.transactional_id,
            lambda machine, token, _: machine.verify(token, transaction, wanted),
        )
        absent = ErrorCode.TRANSACTION_ABORTABLE
        if version < FIRST_ABORTABLE:
            absent = ErrorCode.INVALID_TXN_STATE
        codes.update(dict.fromkeys(answer.missing, int(absent)))
    except KafkaError as error:
        codes = dict.fromkeys(wanted, int(error.code))
    return Struct(
        transactional_id=transaction.transactional_id,
        topic_results=_by_topic(transaction.topics, codes),
    )


def _partitions(topics: list[Struct]) -> list[TopicPartition]:
    return [(topic.name, index) for topic in topics for index in topic.partitions]


def _why_not(state: BrokerState, partition: TopicPartition) -> int:
    name, index = partition
    try:
        check_not_internal(name)
        check_partition(find_topic(state.image, name), index)
    except KafkaError as error:
        return int(error.code)
    return 0


def _by_topic(topics: list[Struct], codes: dict[TopicPartition, int]) -> list[Struct]:
    return [
        Struct(
            name=topic.name,
            results_by_partition=[
                Struct(partition_index=it, partition_error_code=codes[topic.name, it])
                for it in topic.partitions
            ],
        )
        for topic in topics
    ]


# -- for the leaders of partitions -------------------------------------------------------------


async def verify(
    state: BrokerState,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    topic: str,
    index: int,
) -> None:
    """Raises unless the partition is in this producer's open transaction, wherever that is kept."""
    shards, shard = state.coordinators.place(TRANSACTIONS_TOPIC, transactional_id)
    transaction = Struct(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        verify_only=True,
        topics=[Struct(name=topic, partitions=[index])],
    )
    node, _ = current_leader(state, shards, shard)
    if node == -1:
        raise KafkaError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{shards.name}-{shard} has no leader"
        )
    if node == state.config.node_id:
        result = await _of_a_node(state, FIRST_ABORTABLE, transaction)
    else:
        try:
            answer = await state.peers.request(
                node,
                Api.ADD_PARTITIONS_TO_TXN,
                Struct(transactions=[transaction]),
                timeout_s=VERIFY_S,
            )
        except PeerUnreachable as error:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
        [result] = answer.results_by_transaction
    code = ErrorCode(result.topic_results[0].results_by_partition[0].partition_error_code)
    if code is ErrorCode.TRANSACTION_ABORTABLE:
        code = ErrorCode.INVALID_TXN_STATE  # which every producer has heard of
    if code is not ErrorCode.NONE:
        raise KafkaError(code, f"{topic}-{index} is not known to be in {transactional_id}")


# -- the end -----------------------------------------------------------------------------------


async def end_txn(state: BrokerState, request: Request, message: Struct) -> Struct:
    opened_at = request.connection.opened_at
    try:
        return await _ask(
            state,
            message.transactional_id,
            lambda machine, token, now_ms: machine.end(token, message, now_ms, opened_at),
        )
    except KafkaError as error:
        return Struct(error_code=_code(request, error))


async def end_txn_group(state: BrokerState, request: Request, message: Struct) -> Struct:
    try:
        if not message.query or SEPARATOR in message.query:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "A query needs a name without a separator")
        return await _ask(
            state,
            message.query,
            lambda machine, token, now_ms: machine.end_group(token, message, now_ms),
        )
    except KafkaError as error:
        answer = Struct(error_code=0, error_message=None, last_batch_id=-1, already_done=False)
        refuse(answer, error)
        return answer


# -- questions ---------------------------------------------------------------------------------


async def describe_transactions(state: BrokerState, request: Request, message: Struct) -> Struct:
    described = await asyncio.gather(*(_describe(state, it) for it in message.transactional_ids))
    return Struct(transaction_states=described)


async def _describe(state: BrokerState, transactional_id: str) -> Struct:
    try:
        return await _ask(
            state,
            transactional_id,
            lambda machine, token, _: machine.describe(token, transactional_id),
        )
    except KafkaError as error:
        return Struct(
            error_code=int(error.code),
            transactional_id=transactional_id,
            transaction_state="",
            transaction_timeout=0,
            transaction_start_time=-1,
            producer_id=-1,
            producer_epoch=-1,
            topics=[],
        )


async def list_transactions(state: BrokerState, request: Request, message: Struct) -> Struct:
    """Of all transactional ids that this node coordinates."""
    known = {it.label: it for it in State}
    states = {known[it] for it in message.state_filters if it in known}
    producer_ids = set(message.producer_id_filters)
    longer_than_ms = getattr(message, "duration_filter", -1)

    def select(machine: Transactions, token: object, now_ms: int) -> list[Effect]:
        chosen = [
            Struct(
                transactional_id=it.transactional_id,
                producer_id=it.producer_id,
                transaction_state=it.state.label,
            )
            for it in machine
            if (not message.state_filters or it.state in states)
            and (not producer_ids or it.producer_id in producer_ids)
            and (longer_than_ms < 0 or now_ms - it.started_ms > longer_than_ms)
        ]
        return [Answer(token, Struct(chosen=chosen))]

    answer = Struct(
        error_code=0,
        unknown_state_filters=[it for it in message.state_filters if it not in known],
        transaction_states=[],
    )
    try:
        for shard in state.coordinators.shards(TRANSACTIONS_TOPIC):
            answer.transaction_states += (await shard.ask(select)).chosen
    except KafkaError as error:
        answer.error_code = int(error.code)
        answer.transaction_states = []
    return answer
