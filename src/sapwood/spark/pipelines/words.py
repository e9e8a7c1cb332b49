"""The words that pipelines are described in: options, a run of one, and how it came out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

BAD_INPUT_STATUS = 2


class PipelineFailed(Exception):
    """What kept a pipeline from its work, in one line that says what to do about it."""

    def __init__(self, message: str, *, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """What a user may ask of a pipeline: `--name` on the command line."""

    name: str  # with hyphens, as people type it
    help: str
    kind: type = str  # str, int, float, bool (a flag) or Path
    default: Any = None
    required: bool = False
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    names_topics: bool = False  # that have to be there, with commas between them

    @property
    def key(self) -> str:
        """Its name in `Run.options`."""
        return self.name.replace("-", "_")


ALLOW_DATA_LOSS = Option(
    name="allow-data-loss",
    kind=bool,
    default=False,
    help="Go on without records that retention or a deletion has taken, and log which.",
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a pipeline that isn't a stream came out. Its message is the command's result."""

    message: str = ""
    status: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a pipeline, or all runs under the same name: each goes on where the last ended."""

    name: str
    pipeline: str
    bootstrap: str
    directory: Path  # the run's own
    options: Mapping[str, Any] = field(default_factory=dict)
    once: bool = True  # take what is there, then end; else go on until stopped
    checkpoints: str | None = None  # where all processes of a Spark cluster can reach it

    def checkpoint(self, part: str) -> str:
        """Where one of its queries keeps its positions and its state."""
        return f"{self.checkpoints or self.directory / 'checkpoints'}/{part}"

    @property
    def trigger(self) -> dict[str, Any]:
        """For `DataStreamWriter.trigger(**run.trigger)`."""
        return {"availableNow": True} if self.once else {"processingTime": "0 seconds"}

    def source(self, **options: Any) -> dict[str, str]:
        """Options of `format("sapwood")`, with the address of this run's cluster."""
        given = {name: str(value) for name, value in options.items() if value is not None}
        return {"kafka.bootstrap.servers": self.bootstrap, **given}

    def read_stream(self, spark: SparkSession, **options: Any) -> DataFrame:
        """Topics from their beginning on, unless the options say otherwise.

        Positions are shown to a consumer group, for tools that watch lag.
        """
        given = self.source(**{"startingOffsets": "earliest", **options})
        given.setdefault("kafka.group.id", f"sapwood-pipeline-{self.name}")
        if self.options.get(ALLOW_DATA_LOSS.key):
            given["failOnDataLoss"] = "false"
        return spark.readStream.format("sapwood").options(**given).load()


Start = Callable[["SparkSession", Run], "Sequence[StreamingQuery] | Outcome"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A ready-made pipeline. `start` returns the queries it has started, or does all the work.

    `finish` follows when all queries have ended by themselves, and nobody has stopped them.
    `failed_status` is that of a run that came to nothing.
    """

    name: str
    summary: str
    start: Start
    finish: Callable[[Run], None] | None = None
    failed_status: int = 1
    options: tuple[Option, ...] = ()
