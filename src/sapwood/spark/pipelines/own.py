"""Users' own pipelines in one file: a Python program, or SQL over streams.

A Python file is run as it is. It finds `spark` and `run` among its globals; whatever queries it
starts are waited for. A SQL file is Spark's SQL, with two statements that are read as streams:

    CREATE TEMPORARY VIEW orders USING sapwood OPTIONS (subscribe 'orders');
    CREATE TEMPORARY VIEW large USING sapwood OPTIONS (topic 'large-orders');
    INSERT INTO large SELECT key, value FROM orders WHERE length(value) > 1000;

Names that are inserted into are targets, of any format that Spark writes streams to; also
`INSERT INTO parquet.`/a/folder` …`. Everything else goes to Spark as it stands.
"""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sapwood.spark.pipelines.words import BAD_INPUT_STATUS, Outcome, PipelineFailed, Run, Start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_PIECE = re.compile(
    r"""'(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | `[^`]*` | --[^\n]* | /\*.*?\*/ | ; | .""",
    re.DOTALL | re.VERBOSE,
)
_VIEW = re.compile(
    r"""CREATE \s+ (?:OR\s+REPLACE\s+)? TEMP(?:ORARY)? \s+ VIEW \s+ (?P<name>\w+|`[^`]+`)
        \s+ USING \s+ (?P<format>[\w.]+) \s* (?:OPTIONS \s* \((?P<options>.*)\))? \s* $""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
_INSERT = re.compile(
    r"""INSERT \s+ INTO \s+ (?:TABLE\s+)? (?:(?P<format>\w+) \. `(?P<path>[^`]+)`
        | (?P<name>\w+|`[^`]+`)) \s+ (?P<query>(?:SELECT|WITH|FROM)\b.*) $""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
_OPTION = re.compile(
    r"""\s* (?:'(?P<quoted>[^']+)' | `(?P<ticked>[^`]+)` | (?P<bare>[\w.]+)) \s* =? \s*
        (?:'(?P<text>(?:[^'\\]|\\.)*)' | "(?P<double>[^"]*)" | (?P<word>[\w.+-]+)) \s* (?:,|$)""",
    re.DOTALL | re.VERBOSE,
)
_CHOOSES_TOPICS = {"subscribe", "subscribepattern", "assign"}


def own_pipeline(path: Path) -> Start:
    """How a file is started; PipelineFailed if it is of no known kind."""
    starts: Mapping[str, Start] = {".py": start_python, ".sql": start_sql}
    if path.suffix not in starts:
        raise PipelineFailed(
            f"{path} is neither a .py nor a .sql file, nor a folder with a spark-pipeline.yml",
            status=BAD_INPUT_STATUS,
        )
    return starts[path.suffix]


def start_python(spark: SparkSession, run: Run) -> Sequence[StreamingQuery] | Outcome:
    from pyspark.sql.streaming.query import StreamingQuery

    path = Path(run.pipeline)
    sys.argv = [str(path)]
    sys.path.insert(0, str(path.parent))  # for modules beside it
    found = runpy.run_path(
        str(path), init_globals={"spark": spark, "run": run}, run_name="__main__"
    )
    # A query that has ended by now isn't active any more, but how it ended counts.
    queries = [
        *spark.streams.active,
        *(it for it in found.values() if isinstance(it, StreamingQuery)),
    ]
    return list({query.runId: query for query in queries}.values()) or Outcome()


def start_sql(spark: SparkSession, run: Run) -> Sequence[StreamingQuery] | Outcome:
    script = _Script(spark, run)
    path = Path(run.pipeline)
    listed = list(statements(path.read_text(encoding="utf-8")))
    targets = {
        _bare(found["name"]) for it in listed if (found := _INSERT.match(it)) and found["name"]
    }
    for statement in listed:
        if found := _VIEW.match(statement):
            script.declare(found, statement, is_target=_bare(found["name"]) in targets)
        elif found := _INSERT.match(statement):
            script.insert(found, statement)
        else:
            script.other(statement)
    return script.queries or Outcome()


@dataclass(frozen=True, slots=True)
class _Target:
    name: str
    format: str
    options: Mapping[str, str]


@dataclass(slots=True)
class _Script:
    spark: SparkSession
    run: Run
    queries: list[StreamingQuery] = field(default_factory=list)
    targets: dict[str, _Target] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)

    def declare(self, found: re.Match[str], statement: str, *, is_target: bool) -> None:
        name, form = _bare(found["name"]), found["format"].lower()
        options = read_sql_options(found["options"] or "")
        if is_target:
            self.targets[name] = _Target(name, form, options)
        elif form == "sapwood" and _CHOOSES_TOPICS & {key.lower() for key in options}:
            self.run.read_stream(self.spark, **options).createOrReplaceTempView(name)
        else:
            self.spark.sql(statement)

    def insert(self, found: re.Match[str], statement: str) -> None:
        target = self._target(found)
        if target is None:
            self.spark.sql(statement)
            return
        frame = self.spark.sql(found["query"])
        if frame.isStreaming:
            self._stream(target, frame)
        else:
            options = self._sink_options(target)
            frame.write.format(target.format).options(**options).mode("append").save()

    def other(self, statement: str) -> None:
        frame = self.spark.sql(statement)
        if frame.isStreaming:
            raise PipelineFailed(
                f"what becomes of {_start(statement)}? Write INSERT INTO … before it",
                status=BAD_INPUT_STATUS,
            )
        if frame.columns:
            frame.show(truncate=False)

    def _target(self, found: re.Match[str]) -> _Target | None:
        if found["path"]:
            path = found["path"]
            return _Target(Path(path).name, found["format"].lower(), {"path": path})
        return self.targets.get(_bare(found["name"]))

    def _stream(self, target: _Target, frame: DataFrame) -> None:
        repeated = self.names.count(target.name)
        self.names.append(target.name)
        name = f"{target.name}-{repeated + 1}" if repeated else target.name
        options = self._sink_options(target)
        mode = next((options.pop(key) for key in list(options) if key.lower() == "outputmode"), "")
        self.queries.append(
            frame.writeStream.queryName(name)
            .format(target.format)
            .options(**options)
            .option("checkpointLocation", self.run.checkpoint(name))
            .outputMode(mode or "append")
            .trigger(**self.run.trigger)
            .start()
        )

    def _sink_options(self, target: _Target) -> dict[str, str]:
        return (
            self.run.source(**target.options)
            if target.format == "sapwood"
            else dict(target.options)
        )


def statements(text: str) -> Iterator[str]:
    """What stands between semicolons, without comments."""
    found = ""
    for piece in _PIECE.findall(text):
        if piece == ";":
            if found.strip():
                yield found.strip()
            found = ""
        elif piece.startswith("--") or (piece.startswith("/*") and not piece.startswith("/*+")):
            found += " "
        else:
            found += piece
    if found.strip():
        yield found.strip()


def read_sql_options(text: str) -> dict[str, str]:
    options: dict[str, str] = {}
    position = 0
    while position < len(text.rstrip()):
        found = _OPTION.match(text, position)
        if found is None:
            raise PipelineFailed(
                f"OPTIONS ({text.strip()}): write them as name 'value', name 'value'",
                status=BAD_INPUT_STATUS,
            )
        name = found["quoted"] or found["ticked"] or found["bare"]
        value = next(it for it in (found["text"], found["double"], found["word"]) if it is not None)
        options[name] = re.sub(r"\\(.)", r"\1", value)
        position = found.end()
    return options


def _bare(name: str) -> str:
    return name.strip("`")


def _start(statement: str) -> str:
    words = " ".join(statement.split())
    return words if len(words) <= 60 else f"{words[:60]}…"
