"""Log lines for people and for machines."""

import json
import logging
import sys

import pytest

from sapwood.node import logs


def record(level: int, text: str, error: BaseException | None = None) -> logging.LogRecord:
    exc_info = (type(error), error, error.__traceback__) if error is not None else None
    return logging.LogRecord("sapwood.test", level, __file__, 1, text, (), exc_info)


def test_a_line_for_people_has_time_level_source_and_text() -> None:
    line = logs.ConsoleFormatter(coloured=False).format(record(logging.INFO, "ready"))
    clock, level, name, text = line.split()
    assert len(clock) == len("12:34:56.789")
    assert (level, name, text) == ("INFO", "sapwood.test:", "ready")


def test_a_level_is_coloured_only_where_asked() -> None:
    warning = record(logging.WARNING, "careful")
    assert "\x1b[33mWARNING" in logs.ConsoleFormatter(coloured=True).format(warning)
    assert "\x1b" not in logs.ConsoleFormatter(coloured=False).format(warning)


def test_a_line_for_machines_is_one_json_object_with_the_traceback_inside() -> None:
    line = logs.JsonFormatter().format(record(logging.ERROR, "broken", ValueError("why")))
    found = json.loads(line)
    assert "\n" not in line
    assert (found["level"], found["logger"], found["message"]) == (
        "error",
        "sapwood.test",
        "broken",
    )
    assert "ValueError: why" in found["exception"]


def test_lines_go_to_stderr_from_the_chosen_level_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    logs.configure("warning", "json")
    logging.getLogger("sapwood.test").info("unheard")
    logging.getLogger("sapwood.test").warning("heard")
    sys.stderr.flush()
    output = capsys.readouterr()
    assert output.out == ""
    assert [json.loads(line)["message"] for line in output.err.splitlines()] == ["heard"]
