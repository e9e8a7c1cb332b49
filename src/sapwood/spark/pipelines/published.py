"""The topic of all runs: each tells there how it is going, and anybody can ask."""

from __future__ import annotations

import logging
import time
from typing import Any

import msgspec

from sapwood.client import ErrorCode, KafkaClient, KafkaError
from sapwood.client.admin import NewTopic
from sapwood.client.offsets import EARLIEST
from sapwood.spark.pipelines.state import Status

TOPIC = "__sapwood_pipelines"
# Nobody waits for progress to be published: a cluster that isn't there must not hold the work up.
_PATIENCE: dict[str, Any] = {
    "client_id": "sapwood-pipeline",
    "bootstrap_timeout_ms": 2_000,
    "api_timeout_ms": 5_000,
    "request_timeout_ms": 5_000,
    "delivery_timeout_ms": 5_000,
}
_TRY_AGAIN_S = 30.0


class Publisher:
    """Puts the status of a run on the topic of all runs, keyed by its name."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._client: KafkaClient | None = None
        self._not_before_s = 0.0

    def publish(self, status: Status) -> None:
        """As well as it goes. What can't be published now is old when it could be."""
        if time.monotonic() < self._not_before_s:
            return
        try:
            client = self._connected()
            client.send(TOPIC, msgspec.json.encode(status), key=status.name.encode()).get()
        except (KafkaError, OSError, TimeoutError, ValueError) as error:
            logging.getLogger("sapwood.spark").warning("progress isn't published: %s", error)
            self._not_before_s = time.monotonic() + _TRY_AGAIN_S
            self.close()

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connected(self) -> KafkaClient:
        if self._client is None:
            client = KafkaClient(self._bootstrap, **_PATIENCE)
            client.connect()
            self._client = client
            try:
                client.create_topics([NewTopic(TOPIC, 1, configs={"cleanup.policy": "compact"})])
            except KafkaError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
        return self._client


def published(client: KafkaClient) -> list[Status]:
    """What each run has said last, wherever it runs; those that can't be understood left out."""
    if TOPIC not in client.metadata().topics:
        return []
    found: dict[bytes, Status] = {}
    for record in client.consume({(TOPIC, 0): EARLIEST}, stop_at="end"):
        if record.key is None or record.value is None:
            continue
        try:
            found[record.key] = msgspec.json.decode(record.value, type=Status)
        except msgspec.DecodeError:  # of a newer release, or nobody's
            continue
    return [found[key] for key in sorted(found)]
