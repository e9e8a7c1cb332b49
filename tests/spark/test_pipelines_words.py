"""What pipelines are made of, without Spark: SQL files, errors in a line, runs and their state."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from sapwood.spark.explaining import explain, explain_log
from sapwood.spark.pipelines import PIPELINES, load
from sapwood.spark.pipelines.declarative import make_example
from sapwood.spark.pipelines.own import read_sql_options, statements
from sapwood.spark.pipelines.replay import SETTLED, Spool
from sapwood.spark.pipelines.state import Request, RunFolder, Status, run_folder, run_folders
from sapwood.spark.pipelines.words import PipelineFailed, Run
from sapwood.spark.session import find_java


def test_to_ask_pipelines_for_their_options_loads_no_spark() -> None:
    program = (
        "import sys, sapwood.cli.pipeline, sapwood.cli.following, sapwood.cli.pipeline_status\n"
        "from sapwood.spark.pipelines import PIPELINES, load\n"
        "for name in PIPELINES: assert load(name).name == name\n"
        "assert 'pyspark' not in sys.modules and 'pyarrow' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("name", PIPELINES)
def test_a_pipeline_says_the_same_of_itself_in_the_list_and_in_its_file(name: str) -> None:
    found = load(name)
    assert (found.name, found.summary) == (name, PIPELINES[name])
    assert len({option.key for option in found.options}) == len(found.options)


class Recorder:
    """A Spark that only notes what it is asked to read."""

    def __init__(self) -> None:
        self.readStream = self
        self.asked: dict[str, str] = {}

    def format(self, name: str) -> "Recorder":
        return self

    def options(self, **options: str) -> "Recorder":
        self.asked = options
        return self

    def load(self) -> None:
        pass


@pytest.mark.parametrize("name", ["archive", "latest", "rollup", "timeline"])
def test_what_reads_streams_goes_on_without_lost_records_if_it_is_asked_to(
    name: str, tmp_path: Path
) -> None:
    (option,) = (it for it in load(name).options if it.name == "allow-data-loss")
    run = Run(name=name, pipeline=name, bootstrap="b:1", directory=tmp_path)
    for is_allowed in (False, True):
        spark = Recorder()
        replace(run, options={option.key: is_allowed}).read_stream(cast(Any, spark), subscribe="t")
        assert spark.asked.get("failOnDataLoss") == ("false" if is_allowed else None)


def test_statements_end_at_semicolons_outside_of_quotes_and_comments() -> None:
    text = """
        -- a comment; with a semicolon
        SELECT ';', "a;b", `c;d` /* ; */ FROM x;
        SELECT /*+ BROADCAST(y) */ 'it\\'s;' FROM y ;;
        SELECT 3
    """
    assert [" ".join(it.split()) for it in statements(text)] == [
        "SELECT ';', \"a;b\", `c;d` FROM x",
        "SELECT /*+ BROADCAST(y) */ 'it\\'s;' FROM y",
        "SELECT 3",
    ]


def test_options_in_sql_are_read_as_spark_reads_them() -> None:
    text = "subscribe 'a,b', kafka.client.id = 'me', 'maxOffsetsPerTrigger' 100, `path` \"/x\""
    assert read_sql_options(text) == {
        "subscribe": "a,b",
        "kafka.client.id": "me",
        "maxOffsetsPerTrigger": "100",
        "path": "/x",
    }
    with pytest.raises(PipelineFailed, match="write them as name 'value'"):
        read_sql_options("subscribe orders payments")


def test_an_error_of_spark_becomes_the_line_of_who_raised_it_first() -> None:
    text = """[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted SQLSTATE: XXKST
Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
sapwood.spark.options.WrongOption: there is no option 'subscripe': did you mean subscribe?

\tat org.apache.spark.Something(Something.scala:1)
"""
    assert explain(RuntimeError(text)) == "there is no option 'subscripe': did you mean subscribe?"
    assert explain(ValueError("a\nb")) == "ValueError: a"
    assert explain(PipelineFailed("do that")) == "do that"
    wrapped = RuntimeError("Job aborted")
    wrapped.__cause__ = OSError("no space left")
    assert explain(wrapped) == "OSError: no space left"
    assert explain_log("noise\n" + text).startswith("there is no option 'subscripe'")


def test_a_run_keeps_its_request_and_its_status(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "mine")
    request = Request(name="mine", pipeline="latest", bootstrap="b:1", options={"topic": "t"})
    folder.save_request(request)
    assert [found.name for found in run_folders(tmp_path)] == ["mine"]
    assert folder.request() == request
    assert folder.status() is None
    folder.save_status(Status(name="mine", pipeline="latest", state="running"))
    assert (found := folder.status()) is not None
    assert found.state == "running"
    assert folder.run(request).checkpoint("x") == f"{tmp_path}/pipelines/mine/checkpoints/x"
    (folder.path / "run.json").write_text("{")
    with pytest.raises(PipelineFailed, match="is damaged"):
        folder.request()
    with pytest.raises(PipelineFailed, match="nothing was ever run"):
        RunFolder(tmp_path / "nowhere").request()
    for wrong in ("", "a/b", "../up", ".hidden"):
        with pytest.raises(PipelineFailed, match="can't be the name"):
            run_folder(tmp_path, wrong)


def test_an_unfinished_replay_goes_on_with_its_own_messages_only(tmp_path: Path) -> None:
    run = Run(name="r", pipeline="replay", bootstrap="", directory=tmp_path)
    spool = Spool(replace(run, options={"table": "a", "rate": 5}))
    assert not spool.is_there()
    spool.path.mkdir(parents=True)
    asked = dict.fromkeys(SETTLED) | {"table": "a"}
    (spool.path / "_request.json").write_bytes(msgspec.json.encode(asked))
    assert spool.is_there()
    with pytest.raises(PipelineFailed, match="a replay of something else was not finished"):
        Spool(replace(run, options={"table": "b"})).is_there()
    spool.remove()
    assert not spool.is_there()
    with pytest.raises(PipelineFailed, match="a folder that all of Spark can reach"):
        Spool(replace(run, checkpoints="s3://bucket"))


def test_a_machine_without_a_java_that_is_new_enough_is_told_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(PipelineFailed, match=r"needs Java 17 or newer; .* has no Java: install it"):
        find_java()
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_302\"' >&2\n")
    java.chmod(0o755)
    with pytest.raises(PipelineFailed, match="has Java 8: install it"):
        find_java()


def test_an_example_is_made_once_and_never_over_something_else(tmp_path: Path) -> None:
    make_example(tmp_path / "shop")
    assert (
        f"storage: file://{tmp_path}/shop/storage"
        in (tmp_path / "shop" / "spark-pipeline.yml").read_text()
    )
    with pytest.raises(PipelineFailed, match="is there already"):
        make_example(tmp_path / "shop")
    with pytest.raises(PipelineFailed, match="can't name a pipeline"):
        make_example(tmp_path / "a-b")
