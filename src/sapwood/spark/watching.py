"""What streaming queries say of their progress, heard in one place.

Spark calls the listener in a thread of its own; whoever runs the pipeline asks now and then.
"""

from __future__ import annotations

import threading
import time

import msgspec
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from sapwood.spark.pipelines.state import QueryProgress
from sapwood.spark.planning import from_json


class ProgressListener(StreamingQueryListener):
    """Keeps the last word of each query."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: dict[str, QueryProgress] = {}
        self._counted: dict[str, int] = {}
        self._reasons: dict[str, str] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        with self._lock:
            query = str(event.id)
            self._queries.setdefault(query, QueryProgress(query=event.name or query))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        self.hear(event.progress)

    def hear(self, said: StreamingQueryProgress) -> None:
        """Also what is asked for at the end: Spark's calls may come after that."""
        with self._lock:
            query = str(said.id)
            found = self._queries.setdefault(query, QueryProgress(query=said.name or query))
            found.batch = said.batchId
            if said.numInputRows > 0 and said.batchId > self._counted.get(query, -1):
                self._counted[query] = said.batchId
                found.rows += said.numInputRows
            found.rows_per_s = _finite(said.processedRowsPerSecond)
            found.lag = lag_of(said)
            found.batch_ms = said.batchDuration
            found.state_rows = sum(each.numRowsTotal for each in said.stateOperators)
            found.state_bytes = sum(each.memoryUsedBytes for each in said.stateOperators)
            found.at_ms = time.time_ns() // 1_000_000

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        if event.exception:
            with self._lock:
                self._reasons[str(event.id)] = event.exception

    def progress(self) -> list[QueryProgress]:
        with self._lock:
            return [msgspec.structs.replace(each) for each in self._queries.values()]

    def reasons(self) -> list[str]:
        """Why queries ended, of those that failed."""
        with self._lock:
            return list(self._reasons.values())


def lag_of(said: StreamingQueryProgress) -> int | None:
    """Records that the query's topics hold and that it hasn't read; None if no source tells."""
    total = None
    for source in said.sources:
        if source.endOffset in (None, "null") or source.latestOffset in (None, "null"):
            continue
        try:
            ends = from_json(msgspec.json.decode(source.endOffset))
            latest = from_json(msgspec.json.decode(source.latestOffset))
        except (msgspec.DecodeError, ValueError, TypeError, AttributeError):
            continue  # another kind of source counts in another way
        behind = sum(max(0, offset - ends.get(key, 0)) for key, offset in latest.items())
        total = (total or 0) + behind
    return total


def _finite(rate: float) -> float:
    return rate if 0 <= rate < float("inf") else 0.0
