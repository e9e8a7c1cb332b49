"""`/`, `/livez`, `/readyz`, `/status`, `/brokers`, `/raft_status`: how it all is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from sapwood.client import KafkaError
from sapwood.client.own import replicas_by_node
from sapwood.gateway.cluster import Cluster
from sapwood.gateway.page import WELCOME
from sapwood.gateway.problems import Refused
from sapwood.gateway.tree import secret_of
from sapwood.gateway.words import Answer, Count, PartitionNumber, Query, TopicName

METADATA_TOPIC = "__cluster_metadata"
LOOPBACK = {"127.0.0.1", "::1", "localhost"}

Role = Literal["primary manager", "manager copy", "broker", "edge"]


class WelcomeAnswer(Answer):
    message: str
    version: str
    cluster_id: str | None
    node: int | None
    """The node beside which this gateway runs."""


class LifeAnswer(Answer):
    status: Literal["ok"]


class StatusAnswer(Answer):
    status: Literal["broker running"]
    node: int
    role: Role
    version: str
    cluster_id: str | None
    controller: int | None
    healthy: bool
    """Whether nothing is amiss in the whole cluster, as this node has heard."""
    under_replicated: Count
    leaderless: Count
    offline: Count
    reassigning: Count


class BrokerAnswer(Answer):
    broker: int
    host: str
    port: int
    rack: str | None
    alive: bool
    draining: bool
    controller: bool
    leaders: Count
    replicas: Count


class BrokersAnswer(Answer):
    brokers: list[BrokerAnswer]


class NewBrokerAnswer(Answer):
    broker: int
    address: str


class RaftQuery(Query):
    topic: TopicName | None = None
    partition: PartitionNumber | None = None


class ReplicaAnswer(Answer):
    node: int
    role: str
    """leader, follower, candidate, … or offline"""
    term: int
    epoch: int
    """Of the last leader whose records it holds."""
    log_start: int
    log_end: int
    commit: int
    """Up to where it knows the log to be committed."""
    offline_reason: str | None


class GroupAnswer(Answer):
    topic: str
    partition: int
    leader: int | None
    term: int
    peers: list[int]
    """Those who vote."""
    learners: list[int]
    in_sync: list[int]
    log_end: int
    commit: int
    replicas: list[ReplicaAnswer]


class SilentAnswer(Answer):
    node: int
    reason: str


class RaftAnswer(Answer):
    groups: list[GroupAnswer]
    silent: list[SilentAnswer]
    """Nodes that didn't answer."""


async def welcome(cluster: Cluster, request: Request) -> WelcomeAnswer | Response:
    """JSON; the page for people is for those who ask for HTML, as browsers do."""
    if "text/html" in request.headers.get("accept", ""):
        return HTMLResponse(WELCOME)
    status = await cluster.status()
    return WelcomeAnswer(
        message="Welcome to Sapwood",
        version=status.version,
        cluster_id=status.cluster_id,
        node=cluster.node_id,
    )


async def live(cluster: Cluster) -> LifeAnswer:
    """This process answers; nothing is said of the cluster."""
    return LifeAnswer(status="ok")


async def ready(cluster: Cluster) -> LifeAnswer:
    """The cluster answers and has a controller, so that changes are possible."""
    if (await cluster.status()).controller < 0:
        raise Refused(503, "The cluster has no controller: too few of its nodes can be reached")
    return LifeAnswer(status="ok")


async def status(cluster: Cluster) -> StatusAnswer:
    """Of the node beside this gateway; in front of a cluster, of any."""
    found = await cluster.status(cluster.node_id)
    return StatusAnswer(
        status="broker running",
        node=found.node_id,
        role=await _role(cluster, found),
        version=found.version,
        cluster_id=found.cluster_id,
        controller=None if found.controller < 0 else found.controller,
        healthy=found.healthy,
        under_replicated=found.under_replicated,
        leaderless=found.leaderless,
        offline=found.offline,
        reassigning=found.reassigning,
    )


async def _role(cluster: Cluster, found: Any) -> Role:
    if found.kind == "edge":
        return "edge"
    if found.controller == found.node_id:
        return "primary manager"
    itself = {it.node_id: it for it in found.nodes}.get(found.node_id)
    if itself is None:  # it hasn't heard of its own registration yet
        return "broker"
    where = {itself.node_id: f"{itself.host}:{itself.port}"}
    groups = (await _replicas(cluster, where, [METADATA_TOPIC]))[itself.node_id]
    votes = [] if isinstance(groups, KafkaError) else [it.node for g in groups for it in g.voters]
    return "manager copy" if found.node_id in votes else "broker"


async def list_brokers(cluster: Cluster) -> BrokersAnswer:
    found = await cluster.status()
    return BrokersAnswer(
        brokers=[
            BrokerAnswer(
                broker=each.node_id,
                host=each.host,
                port=each.port,
                rack=each.rack,
                alive=each.alive,
                draining=each.draining,
                controller=each.node_id == found.controller,
                leaders=each.leaders,
                replicas=each.replicas,
            )
            for each in found.nodes
        ]
    )


async def start_broker(cluster: Cluster, request: Request) -> NewBrokerAnswer:
    """Starts another broker on this host, which takes its share. For whoever sits at this host, or
    has the cluster's secret, as a bearer's token."""
    if "authorization" not in request.headers:
        check_is_here(request)
    else:
        async with cluster.as_node(secret_of(request)):
            pass  # it is the right one
    answer = await cluster.ask_supervisor("node")
    if "error" in answer:
        raise Refused(503, f"The new broker doesn't start: {answer['error']}")
    return NewBrokerAnswer(broker=answer["node_id"], address=answer["listeners"]["kafka"])


def check_is_here(request: Request) -> None:
    """What starts processes is for who sits here, and not for pages that trick a browser."""
    host = request.url.hostname or ""
    if request.client is None or request.client.host not in LOOPBACK or host not in LOOPBACK:
        raise Refused(403, "This is asked for from its own host only: ask 127.0.0.1 there")


async def raft_status(cluster: Cluster, query: RaftQuery) -> RaftAnswer:
    """Every group of replicas, from what each living node says of its own."""
    if query.topic not in (None, METADATA_TOPIC):
        await cluster.partitions(query.topic, query.partition)
    nodes = await cluster.living()
    topics = None if query.topic is None else [query.topic]
    told = await _replicas(cluster, nodes, topics)
    by_group: dict[tuple[str, int], dict[int, Any]] = {}
    for node, groups in told.items():
        for each in [] if isinstance(groups, KafkaError) else groups:
            if query.partition in (None, each.partition):
                by_group.setdefault((each.topic, each.partition), {})[node] = each
    return RaftAnswer(
        groups=[_group(*key, replicas) for key, replicas in sorted(by_group.items())],
        silent=[
            SilentAnswer(node=node, reason=it.message or it.code.name)
            for node, it in told.items()
            if isinstance(it, KafkaError)
        ],
    )


def _group(topic: str, partition: int, replicas: dict[int, Any]) -> GroupAnswer:
    """As the one with the newest term sees it; among equals the leader itself."""
    _, best = max(replicas.items(), key=lambda item: (item[1].term, item[1].leader == item[0]))
    return GroupAnswer(
        topic=topic,
        partition=partition,
        leader=None if best.leader < 0 else best.leader,
        term=best.term,
        peers=[it.node for it in best.voters],
        learners=list(best.learners),
        in_sync=list(best.in_sync),
        log_end=best.log_end,
        commit=best.high_watermark,
        replicas=[
            ReplicaAnswer(
                node=node,
                role=it.role,
                term=it.term,
                epoch=it.epoch,
                log_start=it.log_start,
                log_end=it.log_end,
                commit=it.high_watermark,
                offline_reason=it.offline_reason,
            )
            for node, it in sorted(replicas.items())
        ],
    )


async def _replicas(
    cluster: Cluster, nodes: Mapping[int, str], topics: Iterable[str] | None
) -> dict[int, Any]:
    async with cluster.reaching(nodes) as kafka:
        return await kafka.run(replicas_by_node(kafka.core, kafka.now_ms, nodes, topics))
