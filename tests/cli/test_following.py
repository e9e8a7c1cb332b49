"""What a terminal shows of a pipeline's run: rows, rate, what is left, or the tasks of a job."""

import io
import sys
from collections.abc import Callable

import pytest

from sapwood.cli.following import progress_on_screen
from sapwood.spark.pipelines.state import QueryProgress, Request, Status


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


Shown = Callable[..., str]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    def show(*words: Status, quiet: bool = False, on: io.StringIO | None = None) -> str:
        terminal = on or Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        with progress_on_screen(Request(name="mine", pipeline="latest"), quiet) as screen:
            for status in words:
                screen.show(status)
        return terminal.getvalue()

    for name, value in {"TERM": "xterm", "COLUMNS": "150", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    return show


def status(state: str = "running", *queries: QueryProgress, once: bool = True) -> Status:
    return Status(name="mine", pipeline="latest", state=state, once=once, queries=list(queries))


def test_a_run_to_the_end_shows_how_much_of_all_it_has_read(shown: Shown) -> None:
    query = QueryProgress(query="mine", rows=1500, rows_per_s=300, lag=500)
    text = shown(status("starting"), status("running", query))
    assert "mine: starting Spark" in text
    assert "1,500/2,000 rows, 300/s" in text
    assert "behind" not in text


def test_a_run_without_an_end_shows_how_far_each_query_is_behind(shown: Shown) -> None:
    queries = [QueryProgress(query=it, rows=7, rows_per_s=1, lag=12_000) for it in ("mine", "two")]
    text = shown(status("running", *queries, once=False))
    assert text.count("7 rows, 1/s, 12,000 behind") >= 2
    assert "mine: two" in text


def test_a_job_shows_its_tasks(shown: Shown) -> None:
    job = status()
    job.tasks, job.tasks_done = 8, 3
    assert "3/8 tasks" in shown(status("starting"), job)


def test_nothing_is_drawn_for_the_quiet_and_where_there_is_no_terminal(shown: Shown) -> None:
    assert shown(status(), quiet=True) == ""
    assert shown(status(), on=io.StringIO()) == ""
