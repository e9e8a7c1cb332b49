"""What the documents show of a terminal is what happens."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import sapwood
from tests.gateway.rest import Gateway
from tests.gateway.talk import TcpTalk

DOCUMENTS = Path(__file__).resolve().parent.parent.parent / "docs"


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with sapwood.Cluster() as cluster, Gateway(cluster.bootstrap, node_id=0) as gateway:
        yield gateway


def transcript(page: str) -> list[tuple[str, str]]:
    """Commands with what they print; … stands for anything."""
    text = (DOCUMENTS / page).read_text(encoding="utf-8")
    found: list[tuple[str, str]] = []
    for block in re.findall(r"(?:^    .*\n)+", text, re.MULTILINE):
        for line in block.splitlines():
            line = line[4:]
            if line.startswith("$ "):
                found.append((line[2:], ""))
            elif found:
                command, printed = found[-1]
                found[-1] = command, f"{printed}{line}\n"
    return found


def matches(printed: str, expected: str) -> bool:
    pattern = ".*".join(re.escape(each) for each in expected.strip().split("…"))
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None


def test_the_page_about_rest_tells_what_curl_prints(gateway: Gateway) -> None:
    commands = [it for it in transcript("rest.md") if it[0].startswith("curl ")]
    assert len(commands) > 8
    for command, expected in commands:
        run = subprocess.run(
            command.replace("127.0.0.1:8080", gateway.ready["rest"]),
            shell=True,
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert matches(run.stdout, expected), f"{command}\n{run.stdout}{run.stderr}"


def test_the_page_about_lines_tells_what_netcat_shows(gateway: Gateway) -> None:
    talks = [it for it in transcript("lines.md") if it[0].startswith("nc ")]
    assert len(talks) > 2
    for _, lines in talks:
        with TcpTalk(gateway.ready["lines"]) as talk:
            for line in lines.splitlines()[1:]:  # the greeting was read on opening
                way, _, text = line.partition(" ")
                if way == ">":
                    talk.write(text)
                    continue
                if text.startswith("[NEW_MESSAGE]"):  # may come before the answer or behind it
                    fields = json.dumps(talk.message(), separators=(",", ":"))
                    said = f"[NEW_MESSAGE] {fields}"
                else:
                    said = talk.answer()
                assert matches(said, text), f"{said}\ninstead of\n{text}"
