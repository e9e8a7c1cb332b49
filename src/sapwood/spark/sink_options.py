"""What users may ask of the sink: the names of Spark's Kafka sink and of Kafka's producer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sapwood.spark.options import (
    OptionReader,
    WrongOption,
    read_client_options,
    read_flag,
    sort_options,
)
from sapwood.wire.compression import Compression

# A stream's name and checkpoint are options of the stream, and are shown to its sink.
NAMES = (
    "topic", "includeHeaders", "includeTimestamp", "checkpointLocation", "queryName",
    "txnAppId", "txnVersion",
)  # fmt: skip

STREAM_TIMEOUT_MS = 60_000
"""So long readers may be held up by a batch whose executor was lost."""
JOB_TIMEOUT_MS = 900_000
"""As long as a broker lets any transaction be open; a job's first task has to wait for its last."""

_CLIENT_NUMBERS = {
    "request.timeout.ms": "request_timeout_ms",
    "default.api.timeout.ms": "api_timeout_ms",
    "delivery.timeout.ms": "delivery_timeout_ms",
    "metadata.max.age.ms": "metadata_max_age_ms",
    "max.block.ms": "topic_wait_ms",
    "max.request.size": "max_request_bytes",
    "batch.size": "batch_bytes",
    "buffer.memory": "buffer_bytes",
    "linger.ms": "linger_ms",
}
_CLIENT_WORDS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "compression.type": ("compression", {it.name.lower(): it for it in Compression}),
    "acks": ("acks", {"all": -1, "-1": -1}),
    "enable.idempotence": ("idempotent", {"true": True}),
}
_SETTLED = {
    "transactional.id": "every task has one of its own",
    "key.serializer": "keys are bytes or strings",
    "value.serializer": "values are bytes or strings",
    "interceptor.classes": "there are none here",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    bootstrap: str
    topic: str | None = None
    with_headers: bool = True
    with_timestamps: bool = False
    timeout_ms: int = STREAM_TIMEOUT_MS
    job: tuple[str, int] | None = None
    """Who writes this, and as its how many-eth: what is written already isn't written again."""
    client: Mapping[str, Any] = field(default_factory=dict)


def read_sink_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    options, kafka, bootstrap = sort_options(given, NAMES)
    reader = OptionReader(options)
    default_ms = STREAM_TIMEOUT_MS if streaming else JOB_TIMEOUT_MS
    numbers = {**_CLIENT_NUMBERS, "transaction.timeout.ms": "timeout_ms"}
    client = read_client_options(kafka, numbers, _CLIENT_WORDS, _SETTLED)
    app, version = reader.get("txnAppId", str, None), reader.get("txnVersion", int, None)
    if (app is None) != (version is None) or (streaming and app is not None):
        raise WrongOption("txnAppId and txnVersion go together, and are for batch queries")
    return SinkOptions(
        bootstrap=bootstrap,
        topic=reader.get("topic", str, None),
        with_headers=reader.get("includeHeaders", read_flag, True),
        with_timestamps=reader.get("includeTimestamp", read_flag, False),
        timeout_ms=client.pop("timeout_ms", default_ms),
        job=None if app is None or version is None else (app, version),
        client=client,
    )
