"""The table of what is served: which API, in which versions, by which function."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sapwood.broker import (
    clients,
    cluster,
    configs,
    consumer_groups,
    finding,
    groups,
    holding,
    markers,
    membership,
    offsets,
    placement,
    positions,
    producers,
    replication,
    status,
    supervising,
    times,
    topics,
    transactions,
)
from sapwood.broker.attaching import attach
from sapwood.broker.fetch import fetch
from sapwood.broker.forwarding import at_controller, forwarded
from sapwood.broker.produce import produce
from sapwood.broker.relaying import fetch_for_cache, relay
from sapwood.broker.state import BrokerState
from sapwood.broker.unattended import to_its_end
from sapwood.server import Request
from sapwood.wire.apis import Api, codec_versions
from sapwood.wire.codec import Buffer, Struct, decode_request
from sapwood.wire.errors import ErrorCode, MalformedMessage
from sapwood.wire.frames import encode_response_frame

Response = list[Buffer] | None
Raw = Callable[[BrokerState, Request], Response | Awaitable[Response]]
Cooked = Callable[[BrokerState, Request, Struct], Struct | Awaitable[Struct]]


@dataclass(frozen=True, slots=True)
class Served:
    first: int
    last: int
    handler: Raw
    advertised_first: int | None = None


def _cooked(api: Api, handler: Cooked) -> Raw:
    """A handler on decoded messages, as one on frames."""

    async def finish(request: Request, answer: Awaitable[Struct]) -> Response:
        return encode(request, await answer)

    def encode(request: Request, answer: Struct) -> Response:
        header = request.header
        if not hasattr(answer, "throttle_time"):
            answer.throttle_time = 0
        return encode_response_frame(api, header.api_version, header.correlation_id, answer)

    def raw(state: BrokerState, request: Request) -> Response | Awaitable[Response]:
        version = request.header.api_version
        message = decode_request(api, version, request.body, request.body_offset)
        answer = handler(state, request, message)
        if isinstance(answer, Struct):
            return encode(request, answer)
        # A client that goes away must not stop a change of the cluster half-way.
        return to_its_end(finish(request, answer))

    return raw


_COOKED: dict[Api, Cooked] = {
    Api.LIST_OFFSETS: offsets.list_offsets,
    Api.METADATA: cluster.metadata,
    Api.OFFSET_COMMIT: positions.offset_commit,
    Api.OFFSET_FETCH: positions.offset_fetch,
    Api.FIND_COORDINATOR: finding.find_coordinator,
    Api.JOIN_GROUP: groups.join_group,
    Api.HEARTBEAT: groups.heartbeat,
    Api.LEAVE_GROUP: groups.leave_group,
    Api.SYNC_GROUP: groups.sync_group,
    Api.DESCRIBE_GROUPS: groups.describe_groups,
    Api.LIST_GROUPS: groups.list_groups,
    Api.DELETE_GROUPS: groups.delete_groups,
    Api.CONSUMER_GROUP_HEARTBEAT: consumer_groups.heartbeat,
    Api.CONSUMER_GROUP_DESCRIBE: consumer_groups.describe,
    Api.OFFSET_DELETE: positions.offset_delete,
    Api.TXN_OFFSET_COMMIT: positions.txn_offset_commit,
    Api.CREATE_TOPICS: topics.create_topics,
    Api.DELETE_TOPICS: topics.delete_topics,
    Api.DELETE_RECORDS: offsets.delete_records,
    Api.INIT_PRODUCER_ID: transactions.init_producer_id,
    Api.OFFSET_FOR_LEADER_EPOCH: offsets.offset_for_leader_epoch,
    Api.ADD_PARTITIONS_TO_TXN: transactions.add_partitions,
    Api.ADD_OFFSETS_TO_TXN: transactions.add_offsets,
    Api.END_TXN: transactions.end_txn,
    Api.DESCRIBE_CONFIGS: configs.describe_configs,
    Api.ALTER_CONFIGS: configs.alter_configs,
    Api.ALTER_REPLICA_LOG_DIRS: placement.alter_replica_log_dirs,
    Api.DESCRIBE_LOG_DIRS: cluster.describe_log_dirs,
    Api.CREATE_PARTITIONS: topics.create_partitions,
    Api.ELECT_LEADERS: placement.elect_leaders,
    Api.ALTER_PARTITION_REASSIGNMENTS: placement.alter_partition_reassignments,
    Api.LIST_PARTITION_REASSIGNMENTS: placement.list_partition_reassignments,
    Api.INCREMENTAL_ALTER_CONFIGS: configs.incremental_alter_configs,
    Api.DESCRIBE_CLUSTER: cluster.describe_cluster,
    Api.DESCRIBE_PRODUCERS: markers.describe_producers,
    Api.DESCRIBE_TRANSACTIONS: transactions.describe_transactions,
    Api.LIST_TRANSACTIONS: transactions.list_transactions,
    Api.LIST_CONFIG_RESOURCES: configs.list_config_resources,
    Api.DESCRIBE_QUORUM: placement.describe_quorum,
    Api.DESCRIBE_TOPIC_PARTITIONS: cluster.describe_topic_partitions,
    Api.WRITE_TXN_MARKERS: markers.write_txn_markers,
    Api.NODE_STATUS: status.node_status,
    Api.REPLICA_VOTE: replication.vote,
    Api.ANNOUNCE: replication.announce,
    Api.TRANSFER: replication.transfer,
    Api.JOIN: membership.join,
    Api.CHANGE_NODE: membership.change,
    Api.RECOVER_PARTITION: membership.recover,
    Api.DESCRIBE_REPLICAS: status.describe_replicas,
    Api.CHANGE_CLIENT: clients.change,
    Api.LIST_CLIENTS: clients.list_all,
    Api.RESERVE_PRODUCER_IDS: producers.reserve_producer_ids,
    Api.HELD_OFFSET: holding.answer_held_offset,
    Api.APPEND_TIMES: times.append_times,
    Api.TOPIC_TIMES: times.topic_times,
    Api.END_TXN_GROUP: transactions.end_txn_group,
    Api.REGISTER_EDGE: supervising.register,
    Api.CONFIRM_EDGE: supervising.confirm,
    Api.REPORT_DOWN: supervising.report_down,
    Api.REPORT_TREE: supervising.report_tree,
    Api.DESCRIBE_TREE: supervising.describe,
}

_AT_CONTROLLER = {
    Api.ALTER_CONFIGS,
    Api.ALTER_PARTITION_REASSIGNMENTS,
    Api.CHANGE_CLIENT,
    Api.CHANGE_NODE,
    Api.CONFIRM_EDGE,
    Api.CREATE_PARTITIONS,
    Api.CREATE_TOPICS,
    Api.DELETE_TOPICS,
    Api.DESCRIBE_QUORUM,
    Api.INCREMENTAL_ALTER_CONFIGS,
    Api.JOIN,
    Api.REGISTER_EDGE,
    Api.REPORT_DOWN,
    Api.TOPIC_TIMES,
}

# Kafka's, but among nodes only: the whole of it, or its later versions.
_NOT_ADVERTISED = {Api.WRITE_TXN_MARKERS}
# Ours, but clients want to know whether they are there.
_OWN_ADVERTISED = {
    Api.APPEND_TIMES,
    Api.CHANGE_CLIENT,
    Api.CONFIRM_EDGE,
    Api.DESCRIBE_REPLICAS,
    Api.DESCRIBE_TREE,
    Api.END_TXN_GROUP,
    Api.LIST_CLIENTS,
    Api.NODE_STATUS,
    Api.REGISTER_EDGE,
    Api.REPORT_DOWN,
    Api.TOPIC_TIMES,
}
_LAST_ADVERTISED: dict[int, int] = {Api.ADD_PARTITIONS_TO_TXN: transactions.FIRST_OF_NODES - 1}

_LAST_SERVED = {
    # Version 6 is for two-phase commit, which is not there.
    Api.INIT_PRODUCER_ID: 5,
    # Version 5 is for producers that get an epoch for every transaction.
    Api.END_TXN: 4,
    # Version 2 has a pattern to match names by, and some patterns take Python for ever.
    Api.LIST_TRANSACTIONS: 1,
}


def _api_versions(state: BrokerState, request: Request) -> Response:
    header = request.header
    version, error_code = header.api_version, ErrorCode.NONE
    served = SERVED[Api.API_VERSIONS]
    if served.first <= version <= served.last:
        decode_request(Api.API_VERSIONS, version, request.body, request.body_offset)
    else:
        # Every client understands version 0, whatever it asked in.
        version, error_code = 0, ErrorCode.UNSUPPORTED_VERSION
    answer = Struct(
        error_code=int(error_code),
        api_keys=[
            Struct(
                api_key=int(api),
                min_version=s.first if s.advertised_first is None else s.advertised_first,
                max_version=_LAST_ADVERTISED.get(api, s.last),
            )
            for api, s in SERVED.items()
            if (api < Api.NODE_STATUS and api not in _NOT_ADVERTISED) or api in _OWN_ADVERTISED
        ],
        throttle_time=0,
    )
    return encode_response_frame(Api.API_VERSIONS, version, header.correlation_id, answer)


def _forwarded(state: BrokerState, request: Request) -> Awaitable[Response]:
    async def answer(state: BrokerState, _: Request, message: Struct) -> Struct:
        return await forwarded(state, message, lambda it: answer_to(state, it))

    return _cooked(Api.FORWARD, answer)(state, request)  # type: ignore[return-value]


def _relayed(state: BrokerState, request: Request) -> Awaitable[Response]:
    return relay(state, request, lambda it: answer_to(state, it))


def _fetch(state: BrokerState, request: Request) -> Response | Awaitable[Response]:
    if request.connection.node is None:
        return fetch(state, request)
    return fetch_for_cache(state, request, lambda it: fetch(state, it))


def answer_to(state: BrokerState, request: Request) -> Response | Awaitable[Response]:
    header = request.header
    served = SERVED.get(header.api_key)
    if served is None or not served.first <= header.api_version <= served.last:
        if header.api_key != Api.API_VERSIONS:
            raise MalformedMessage(
                f"API key {header.api_key} in version {header.api_version} is not served"
            )
        return _api_versions(state, request)
    return served.handler(state, request)


def _served() -> dict[int, Served]:
    raw: dict[Api, Raw] = {
        Api.PRODUCE: produce,
        Api.FETCH: _fetch,
        Api.API_VERSIONS: _api_versions,
        Api.REPLICA_FETCH: replication.fetch,
        Api.FORWARD: _forwarded,
        Api.ATTACH: attach,
        Api.RELAY: _relayed,
    }
    raw.update({api: _cooked(api, handler) for api, handler in _COOKED.items()})
    raw.update({api: at_controller(raw[api]) for api in _AT_CONTROLLER})
    served = {}
    for api in sorted(raw):
        first, last = codec_versions(api)
        last = min(last, _LAST_SERVED.get(api, last))
        advertised = 0 if api is Api.PRODUCE else None
        served[int(api)] = Served(first, last, raw[api], advertised)
    return served


SERVED = _served()
