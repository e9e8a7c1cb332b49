"""The broker as a whole: it starts from its data directory, answers requests, and stops cleanly."""

import asyncio
import base64
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable

from sapwood.broker import groups, holding, membership, transactions
from sapwood.broker.attaching import Attaching
from sapwood.broker.controlling import Controlling
from sapwood.broker.coordinating import Coordinators
from sapwood.broker.producer_ids import ProducerIds
from sapwood.broker.serving import Response, answer_to
from sapwood.broker.settling import Settling
from sapwood.broker.state import BrokerConfig, BrokerState, wall_clock_ms
from sapwood.broker.store import TOPIC_ID, BadSnapshot, MetadataStore
from sapwood.broker.supervising import Supervising
from sapwood.metadata import records as r
from sapwood.metadata.controller import METADATA_TOPIC
from sapwood.metadata.image import BROKER_RESOURCE, Topic
from sapwood.replica import (
    UPKEEP_INTERVAL_S,
    Disk,
    JournalFailed,
    LogConfig,
    NoPeers,
    Partition,
    Peers,
    PeerUnreachable,
    Plan,
    Replicas,
    Rules,
    Settings,
    Voter,
)
from sapwood.server import Request
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

ENTER_S = 10.0
"""How long a start waits for the cluster before it goes on without it."""
RESIGN_S = 2.0
RETRY_S = 0.05
ANSWER_S = 5.0

AddressOf = Callable[[int], tuple[str, int] | None]

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


class Broker:
    def __init__(
        self,
        config: BrokerConfig,
        disk: Disk,
        data_dir: str,
        *,
        now_ms: Callable[[], int] = wall_clock_ms,
        server_metrics: Callable[[], dict[str, float]] = dict,
        connect: Callable[[AddressOf], Peers] | None = None,
        entropy: Callable[[int], bytes] = os.urandom,
        on_fatal: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`connect` gives the connections to other nodes; without it this node stays alone.

        `on_fatal` is told if the node can't go on and has to stop.
        """
        self._on_fatal = on_fatal
        self._has_entered = asyncio.Event()
        self._config = config
        self._disk = disk
        self._data_dir = data_dir
        self._now_ms = now_ms
        self._server_metrics = server_metrics
        self._entropy = entropy
        self._peers = NoPeers() if connect is None else connect(self._address_of)
        self._state: BrokerState | None = None
        self._settling: Settling | None = None
        self._holding: holding.Holding | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def state(self) -> BrokerState:
        if self._state is None:
            raise RuntimeError("the broker has not been started")
        return self._state

    # -- life --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover everything that was acknowledged; only then may requests come in."""
        config = self._config
        replicas = Replicas(
            self._disk,
            self._data_dir,
            self._now_ms,
            me=Voter(config.node_id, config.incarnation),
            peers=self._peers,
            entropy=self._entropy,
            timing=config.timing,
            heartbeat_s=config.heartbeat_s,
            on_opened=self._opened,
            on_unwanted=self._unwanted,
            on_role_changed=self._role_changed,
            on_expired=self._expired,
        )
        if isinstance(self._peers, Peers):
            self._peers.clock = replicas.clock
        await replicas.begin()
        store = await self._open_store(replicas)
        self._state = BrokerState(
            config=config,
            replicas=replicas,
            store=store,
            producer_ids=ProducerIds(config.node_id, store, self._peers),
            coordinators=Coordinators(replicas, lambda: store.image, self._now_ms),
            peers=self._peers,
            entropy=self._entropy,
            data_dir=self._data_dir,
            now_ms=self._now_ms,
            server_metrics=self._server_metrics,
        )
        self.state.coordinators.add(groups.kind(self.state))
        self._settling = transactions.begin(self._state)
        self._holding = holding.Holding(self._state)
        self.state.attaching = Attaching(self.state)
        self.state.supervising = Supervising(self.state)
        try:
            store.open()
        except BadSnapshot as error:
            await self._refill_metadata(replicas, str(error))
            store.set_aside()
        await store.settled()
        replicas.remove_files(store.image.deleted_topics)
        await self._open_leftovers()
        self._tasks = [
            asyncio.create_task(self._keep_up()),
            asyncio.create_task(Controlling(self.state).run()),
            asyncio.create_task(self.state.attaching.run()),
            asyncio.create_task(self.state.supervising.run()),
            asyncio.create_task(self.state.supervising.events.run()),
        ]

    async def enter(self) -> None:
        """Found the cluster, or take part in it: the others know where this node is.

        A start goes on without it if too few others are there: what is committed can be read.
        """
        try:
            await self._enter()
        finally:
            self._has_entered.set()
        self.state.producer_ids.prepare()

    async def _enter(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ENTER_S):
                while not await self._is_in():  # noqa: ASYNC110 - asks somebody else every time
                    await asyncio.sleep(RETRY_S)
                await self.state.store.settled()
                return
        logger.warning("the cluster's controller was not found yet; going on without it")

    async def resign(self) -> None:
        """Hand over what this node leads: nobody need notice that it goes."""
        await self.state.replicas.exchange.resign(RESIGN_S)

    def release_waiters(self) -> None:
        """Answer what waits for more records or other members: a stop need not wait for them."""
        for waiter in list(self.state.fetch_waiters):
            waiter.answer()
        self.state.verifying.close()
        self.state.coordinators.close()
        self.state.attaching.close()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.state.verifying.close()
        self.state.coordinators.close()
        self.state.attaching.close()
        if self._settling is not None:
            await self._settling.close()
        if self._holding is not None:
            await self._holding.close()
        await self.state.producer_ids.close()
        await self.state.replicas.close()
        if isinstance(self._peers, Peers):
            await self._peers.close()

    # -- requests ----------------------------------------------------------------------------

    def handle(self, request: Request) -> Response | Awaitable[Response]:
        key = request.header.api_key
        is_own = key >= Api.NODE_STATUS and key != Api.RELAY
        if self._has_entered.is_set() or is_own or key == Api.API_VERSIONS:
            return answer_to(self.state, request)
        return self._answer_later(request)

    async def _answer_later(self, request: Request) -> Response:
        """Before it is part of the cluster a node would tell clients of one without nodes."""
        await self._has_entered.wait()
        answer = answer_to(self.state, request)
        return await answer if isinstance(answer, Awaitable) else answer

    def metrics(self) -> dict[str, float]:
        return self.state.metrics()

    def offline_partitions(self) -> list[tuple[str, int, str]]:
        return self.state.replicas.offline()

    # -- taking part -------------------------------------------------------------------------

    def _address_of(self, node_id: int) -> tuple[str, int] | None:
        config = self._config
        if node_id in config.routes:
            return config.routes[node_id]
        if self._state is not None and node_id in self._state.image.nodes:
            return next(iter(self._state.image.nodes[node_id].listeners.values()))
        return config.members.get(node_id)

    async def _is_in(self) -> bool:
        """Whether the metadata has this node as it is; else something is done about it."""
        state, config = self.state, self._config
        me = state.image.nodes.get(config.node_id)
        if (
            me is not None
            and me.incarnation == config.incarnation
            and me.listeners == config.advertised
            and me.rack == config.rack
            and state.store.partition.has_leader
        ):
            return True
        try:
            if state.store.is_controller:
                if state.image.cluster_id is None:
                    await self._found()
                await membership.register(
                    state, config.node_id, config.incarnation, config.advertised, config.rack, ""
                )
            else:
                await self._ask_to_join()
        except KafkaError as error:
            if error.code != ErrorCode.NOT_CONTROLLER:
                raise
        except PeerUnreachable as error:
            logger.debug("no controller yet: %s", error)
        return False

    async def _found(self) -> None:
        cluster_id = self._config.cluster_id or _new_cluster_id(self._entropy)
        async with self.state.store.changing():
            await self.state.store.commit([r.ClusterCreated(cluster_id=cluster_id)])

    async def _ask_to_join(self) -> None:
        config = self._config
        controller = self.state.store.controller_id
        nodes = [controller] if controller >= 0 else [*config.members, *self.state.image.nodes]
        for node in dict.fromkeys(nodes):
            if node == config.node_id:
                continue
            answer = await self._peers.request(
                node,
                Api.JOIN,
                Struct(
                    cluster_id=config.cluster_id,
                    node_id=config.node_id,
                    incarnation=config.incarnation,
                    listeners=[
                        Struct(name=name, host=host, port=port)
                        for name, (host, port) in config.advertised.items()
                    ],
                    rack=config.rack,
                    version="",
                ),
                timeout_s=ANSWER_S,
            )
            if answer.error_code:
                raise KafkaError(ErrorCode(answer.error_code), answer.error_message or "")
            return

    def _role_changed(self, partition: Partition) -> None:
        if self._state is not None:  # the metadata log has its role before there is anything else
            self._state.coordinators.attend(partition)

    def _expired(self, partition: Partition) -> None:
        if self._holding is not None:
            self._holding.expired(partition)

    def _unwanted(self, partition: Partition) -> None:
        """Its leader has no use for it: it goes, unless the metadata says otherwise."""
        topic = self.state.image.topics_by_id.get(partition.topic_id)
        if topic is not None and self._config.node_id not in topic.partitions[partition.index]:
            logger.info("%s has moved to other nodes", partition)
            self.state.replicas.remove_replica(partition.key)

    # -- following the metadata --------------------------------------------------------------

    async def _open_store(self, replicas: Replicas) -> MetadataStore:
        voters = self._config.metadata_voters
        partition = replicas.open(Plan(METADATA_TOPIC, TOPIC_ID, 0, _METADATA_SETTINGS, voters, ()))
        if partition is None:
            partition = await self._refill_metadata(replicas, replicas.offline()[0][2])
        return MetadataStore(
            partition,
            self._disk,
            f"{self._data_dir}/metadata.snapshot",
            self._now_ms,
            self._applied,
        )

    async def _refill_metadata(self, replicas: Replicas, reason: str) -> Partition:
        """Other nodes have them, too; what is damaged is of use to nobody but people."""
        config = self._config
        others = {voter.node for voter in config.metadata_voters} | set(config.members)
        partition = None
        if others - {config.node_id}:
            logger.error("the metadata log is damaged: %s", reason)
            partition = await replicas.refill((TOPIC_ID, 0))
        if partition is None:
            raise MetadataLost(f"the metadata log is damaged: {reason}")
        return partition

    def _opened(self, partition: Partition) -> None:
        if self._state is not None and partition.topic_id == TOPIC_ID:
            self._state.store.follow(partition)

    async def _applied(self, record: r.Record) -> None:
        """What a committed change of the metadata means for this node."""
        state = self.state
        match record:
            case r.TopicCreated() | r.PartitionsAdded() | r.TopicDeleted():
                state.coordinators.topics_changed()
        match record:
            case r.TopicCreated():
                if (topic := state.image.topics_by_id.get(record.topic_id)) is not None:
                    await self._open_partitions(topic, 0)
            case r.PartitionsAdded():
                if (topic := state.image.topics_by_id.get(record.topic_id)) is not None:
                    await self._open_partitions(topic, 0)
            case r.PartitionReassigned():
                if (topic := state.image.topics_by_id.get(record.topic_id)) is not None:
                    await self._open_partitions(topic, record.partition, record.partition + 1)
            case r.TopicDeleted():
                state.replicas.remove(record.topic_id)
            case r.NodeRegistered() | r.NodeChanged() | r.NodeRemoved():
                members = [node.node_id for node in state.image.nodes.values() if node.alive]
                state.replicas.exchange.set_members(members)
            case r.ConfigChanged():
                changed = [record.resource_name]
                if record.resource_type == BROKER_RESOURCE:
                    changed = list(state.image.topics)
                for name in changed:
                    if (topic := state.image.topics.get(name)) is not None:
                        state.replicas.configure(topic.topic_id, state.settings(name))
                        await asyncio.sleep(0)

    async def _open_partitions(self, topic: Topic, first: int, end: int | None = None) -> None:
        state = self.state
        settings = state.settings(topic.name)
        for index in range(first, len(topic.partitions) if end is None else end):
            # Also if it is open: a snapshot says where it is to be now, and not that it moved.
            state.replicas.retarget(topic.topic_id, index, topic.partitions[index])
            if (
                self._config.node_id in topic.partitions[index]
                and state.replicas.find(topic.topic_id, index) is None
            ):
                state.replicas.open(state.plan(topic, index, settings))
                # Each touches a few files: a topic with thousands must not hold everybody up.
                await asyncio.sleep(0)

    async def _open_leftovers(self) -> None:
        """Replicas that are to move away may still have a vote until they have."""
        state = self.state
        for topic_id, index in state.replicas.on_disk():
            topic = state.image.topics_by_id.get(topic_id)
            if topic is None or not 0 <= index < len(topic.partitions):
                continue  # not known here yet: its record is still to come
            if state.replicas.find(topic_id, index) is None:
                state.replicas.open(state.plan(topic, index, state.settings(topic.name)))
                await asyncio.sleep(0)

    async def _keep_up(self) -> None:
        while True:
            await asyncio.sleep(UPKEEP_INTERVAL_S)
            try:
                await self.state.replicas.upkeep()
            except JournalFailed as error:
                # Votes can't be saved any more: a node that can't vote must not pretend to.
                self._on_fatal(f"the journal can't be written: {error}")
                return
            except OSError as error:
                logger.warning("upkeep failed and will be tried again: %s", error)
            except Exception:
                # Without upkeep nothing old is ever deleted, so it goes on whatever happened.
                logger.exception("upkeep failed and will be tried again")


def _new_cluster_id(entropy: Callable[[int], bytes]) -> str:
    """Twenty-two characters, as Kafka's tools expect."""
    return base64.urlsafe_b64encode(entropy(16)).rstrip(b"=").decode()
