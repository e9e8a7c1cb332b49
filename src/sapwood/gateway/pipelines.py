"""`/pipelines`: how runs are going, as they tell the cluster, and one more that stands."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request

from sapwood.client.offsets import EARLIEST
from sapwood.gateway.cluster import Cluster
from sapwood.gateway.health import check_is_here
from sapwood.gateway.problems import Refused
from sapwood.gateway.words import Answer, Body

TOPIC = "__sapwood_pipelines"


class QueryAnswer(Answer):
    """What a streaming query has said of itself last."""

    query: str
    batch: int = 0
    rows: int = 0
    """Since the process started."""
    rows_per_s: float = 0.0
    lag: int | None = None
    """Records that are there and weren't read yet."""
    batch_ms: int = 0
    at_ms: int = 0


class PipelineAnswer(Answer):
    name: str
    pipeline: str
    state: str
    """starting, running, finished, stopped or failed"""
    once: bool = True
    started_ms: int = 0
    error: str | None = None
    queries: list[QueryAnswer] = []


class PipelinesAnswer(Answer):
    pipelines: list[PipelineAnswer]


class NewPipelineBody(Body):
    pipeline: Annotated[str, Meta(min_length=1, max_length=4000, examples=["latest --topic t"])]
    """As behind `sapwood up --pipeline`: its name, with its options."""


class StandingAnswer(Answer):
    name: str


async def list_pipelines(cluster: Cluster) -> PipelinesAnswer:
    """What each run has said last, wherever it runs."""
    if (await cluster.metadata([TOPIC])).topics[TOPIC].error_code:
        return PipelinesAnswer(pipelines=[])
    found: dict[bytes, PipelineAnswer] = {}
    async for record in cluster.reader.consume({(TOPIC, 0): EARLIEST}, stop_at="end"):
        if record.key is None or record.value is None:
            continue
        try:
            found[record.key] = msgspec.json.decode(record.value, type=PipelineAnswer)
        except msgspec.DecodeError:  # of a newer release, or nobody's
            continue
    return PipelinesAnswer(pipelines=[found[key] for key in sorted(found)])


async def start_pipeline(
    cluster: Cluster, body: NewPipelineBody, request: Request
) -> StandingAnswer:
    """Keeps a pipeline running beside this host's nodes. For whoever sits at this host."""
    check_is_here(request)
    answer = await cluster.ask_supervisor("pipeline", text=body.pipeline)
    if "error" in answer:
        raise Refused(400, answer["error"])
    return StandingAnswer(name=answer["name"])
