"""The broker as a whole: it starts from its data directory, answers requests, and stops cleanly."""

import asyncio
import base64
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sapwood.broker import cluster, configs, offsets, placement, producers, topics
from sapwood.broker.fetch import fetch
from sapwood.broker.produce import produce
from sapwood.broker.state import BrokerConfig, BrokerState, wall_clock_ms
from sapwood.broker.store import TOPIC_ID, MetadataStore, ProducerIds
from sapwood.metadata import records as r
from sapwood.metadata.controller import METADATA_TOPIC
from sapwood.metadata.image import BROKER_RESOURCE, Topic
from sapwood.replica import UPKEEP_INTERVAL_S, Disk, LogConfig, Replicas, Rules, Settings
from sapwood.server import Request
from sapwood.wire.apis import Api, codec_versions
from sapwood.wire.codec import Buffer, Struct, decode_request
from sapwood.wire.errors import ErrorCode, MalformedMessage
from sapwood.wire.frames import encode_response_frame

logger = logging.getLogger(__name__)

Response = list[Buffer] | None
Raw = Callable[[BrokerState, Request], Response | Awaitable[Response]]
Cooked = Callable[[BrokerState, Request, Struct], Struct | Awaitable[Struct]]

_METADATA_SETTINGS = Settings(
    LogConfig(cleanup_policy=frozenset(), flush="sync"),
    Rules(
        max_message_bytes=64 << 20,
        append_time=False,
        timestamp_before_max_ms=2**63 - 1,
        timestamp_after_max_ms=2**63 - 1,
        compression=None,
        compacted=False,
        min_insync_replicas=1,
    ),
)


class MetadataLost(Exception):
    """The metadata log can't be trusted, so nothing else on this node can."""


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
        return asyncio.shield(asyncio.ensure_future(finish(request, answer)))

    return raw


_COOKED: dict[Api, Cooked] = {
    Api.LIST_OFFSETS: offsets.list_offsets,
    Api.METADATA: cluster.metadata,
    Api.CREATE_TOPICS: topics.create_topics,
    Api.DELETE_TOPICS: topics.delete_topics,
    Api.DELETE_RECORDS: offsets.delete_records,
    Api.INIT_PRODUCER_ID: producers.init_producer_id,
    Api.OFFSET_FOR_LEADER_EPOCH: offsets.offset_for_leader_epoch,
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
    Api.LIST_CONFIG_RESOURCES: configs.list_config_resources,
    Api.DESCRIBE_TOPIC_PARTITIONS: cluster.describe_topic_partitions,
    Api.NODE_STATUS: cluster.node_status,
}

_LAST_SERVED = {
    # Version 6 is for two-phase commit, which is not there.
    Api.INIT_PRODUCER_ID: 5,
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
                max_version=s.last,
            )
            for api, s in SERVED.items()
            if api < Api.NODE_STATUS
        ],
        throttle_time=0,
    )
    return encode_response_frame(Api.API_VERSIONS, version, header.correlation_id, answer)


def _served() -> dict[int, Served]:
    raw: dict[Api, Raw] = {Api.PRODUCE: produce, Api.FETCH: fetch, Api.API_VERSIONS: _api_versions}
    raw.update({api: _cooked(api, handler) for api, handler in _COOKED.items()})
    served = {}
    for api in sorted(raw):
        first, last = codec_versions(api)
        last = min(last, _LAST_SERVED.get(api, last))
        advertised = 0 if api is Api.PRODUCE else None
        served[int(api)] = Served(first, last, raw[api], advertised)
    return served


SERVED = _served()


class Broker:
    def __init__(
        self,
        config: BrokerConfig,
        disk: Disk,
        data_dir: str,
        *,
        now_ms: Callable[[], int] = wall_clock_ms,
        server_metrics: Callable[[], dict[str, float]] = dict,
    ) -> None:
        self._config = config
        self._disk = disk
        self._data_dir = data_dir
        self._now_ms = now_ms
        self._server_metrics = server_metrics
        self._state: BrokerState | None = None
        self._upkeep: asyncio.Task[None] | None = None

    @property
    def state(self) -> BrokerState:
        if self._state is None:
            raise RuntimeError("the broker has not been started")
        return self._state

    async def start(self) -> None:
        """Recover everything that was acknowledged; only then may requests come in."""
        replicas = Replicas(self._disk, self._data_dir, self._now_ms)
        await replicas.begin()
        store = await self._open_store(replicas)
        self._state = BrokerState(
            config=self._config,
            replicas=replicas,
            store=store,
            producer_ids=ProducerIds(store),
            data_dir=self._data_dir,
            now_ms=self._now_ms,
            server_metrics=self._server_metrics,
        )
        replicas.remove_files(store.image.deleted_topics)
        for topic in store.image.topics.values():
            await self._open_partitions(topic, 0)
        await replicas.settle()
        await self._register()
        self._upkeep = asyncio.create_task(self._keep_up())

    def release_waiters(self) -> None:
        """Answer the fetches that wait for more: a stop need not wait for them."""
        for waiter in list(self.state.fetch_waiters):
            waiter.answer()

    async def stop(self) -> None:
        if self._upkeep is not None:
            self._upkeep.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._upkeep
        await self.state.replicas.close()

    def handle(self, request: Request) -> Response | Awaitable[Response]:
        header = request.header
        served = SERVED.get(header.api_key)
        if served is None or not served.first <= header.api_version <= served.last:
            if header.api_key != Api.API_VERSIONS:
                raise MalformedMessage(
                    f"API key {header.api_key} in version {header.api_version} is not served"
                )
            return _api_versions(self.state, request)
        return served.handler(self.state, request)

    def metrics(self) -> dict[str, float]:
        return self.state.metrics()

    def offline_partitions(self) -> list[tuple[str, int, str]]:
        return self.state.replicas.offline()

    async def _open_store(self, replicas: Replicas) -> MetadataStore:
        partition = replicas.open(METADATA_TOPIC, TOPIC_ID, 0, _METADATA_SETTINGS)
        if partition is None:
            raise MetadataLost(f"the metadata log is damaged: {replicas.offline()[0][2]}")
        await replicas.settle()
        store = MetadataStore(partition, self._now_ms, self._applied)
        store.load()
        return store

    async def _register(self) -> None:
        """Found the cluster on the first start; tell it where this node is to be found."""
        state = self.state
        me = r.NodeRegistered(node_id=self._config.node_id, listeners=self._config.advertised)
        async with state.store.changing() as image:
            found: list[r.Record] = []
            if image.cluster_id is None:
                found.append(r.ClusterCreated(cluster_id=_new_cluster_id()))
            node = image.nodes.get(me.node_id)
            if node is None or node.listeners != me.listeners:
                found.append(me)
            await state.store.commit(found)

    async def _applied(self, record: r.Record) -> None:
        """What a committed change of the metadata means for this node's partitions."""
        state = self.state
        match record:
            case r.TopicCreated():
                await self._open_partitions(state.image.topics[record.name], 0)
            case r.PartitionsAdded():
                topic = state.image.topics_by_id[record.topic_id]
                await self._open_partitions(topic, len(topic.partitions) - len(record.partitions))
            case r.TopicDeleted():
                state.replicas.remove(record.topic_id)
            case r.ConfigChanged():
                changed = [record.resource_name]
                if record.resource_type == BROKER_RESOURCE:
                    changed = list(state.image.topics)
                for name in changed:
                    topic_id = state.image.topics[name].topic_id
                    state.replicas.configure(topic_id, state.settings(name))
                    await asyncio.sleep(0)

    async def _open_partitions(self, topic: Topic, first: int) -> None:
        settings = self.state.settings(topic.name)
        for index in range(first, len(topic.partitions)):
            if self._config.node_id in topic.partitions[index]:
                self.state.replicas.open(topic.name, topic.topic_id, index, settings)
                # Each touches a few files: a topic with thousands must not hold everybody up.
                await asyncio.sleep(0)

    async def _keep_up(self) -> None:
        while True:
            await asyncio.sleep(UPKEEP_INTERVAL_S)
            try:
                await self.state.replicas.upkeep()
            except OSError as error:
                logger.warning("upkeep failed and will be tried again: %s", error)
            except Exception:
                # Without upkeep nothing old is ever deleted, so it goes on whatever happened.
                logger.exception("upkeep failed and will be tried again")


def _new_cluster_id() -> str:
    """Twenty-two characters, as Kafka's tools expect."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
