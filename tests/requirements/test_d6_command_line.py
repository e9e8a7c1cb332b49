"""D6: a publisher on the command line, for several topics, that runs wherever Python does."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import COMMAND, on_a_terminal, sapwood
from tests.helpers import unique

ROOT = Path(__file__).resolve().parent.parent.parent
ELSEWHERE = ROOT / "tests" / "cli" / "elsewhere"
START_SH, START_PS1 = ROOT / "scripts" / "sapwood.sh", ROOT / "scripts" / "sapwood.ps1"


def test_d6_one_run_puts_into_several_topics_and_every_message_has_an_id_of_its_own(
    bootstrap: str,
) -> None:
    topics = [unique("d6") for _ in range(3)]
    for topic in topics:
        sapwood("subscribe", topic, "--id", "reader", bootstrap=bootstrap)
    further = [word for topic in topics[1:] for word in ("-t", topic)]
    lines = b"one\ntwo\n"
    out, _ = sapwood("put", topics[0], "-", *further, "-J", bootstrap=bootstrap, stdin=lines)
    told = [json.loads(line) for line in out.splitlines()]
    assert [each["topic"] for each in told] == topics * 2
    assert len({each["id"] for each in told}) == 6
    for topic in topics:
        out, _ = sapwood("get", topic, "--id", "reader", "-J", bootstrap=bootstrap)
        found = [json.loads(line) for line in out.splitlines()]
        assert [each["value"] for each in found] == ["one", "two"]
        assert [each["id"] for each in found] == [
            each["id"] for each in told if each["topic"] == topic
        ]


def test_d6_logs_are_levelled_and_coloured_on_a_terminal(bootstrap: str) -> None:
    arguments = ("put", unique("d6"), "x", "-b", bootstrap)
    shown = on_a_terminal(*arguments, "--log-level", "debug")
    assert "\x1b[2mDEBUG" in shown
    assert "\x1b[32mINFO" in shown
    assert "\x1b[" not in on_a_terminal(*arguments, NO_COLOR="1")
    assert "INFO" not in on_a_terminal(*arguments, "--log-level", "warning")


def elsewhere(bootstrap: str, *arguments: str) -> tuple[int, str, str]:
    """Status and output on a system without anything that Windows or macOS lack."""
    path = os.pathsep.join(filter(None, (str(ELSEWHERE), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [*COMMAND, *arguments],
        env={**os.environ, "PYTHONPATH": path, "SAPWOOD_BOOTSTRAP": bootstrap},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout, done.stderr


def test_d6_client_and_command_line_need_nothing_that_other_systems_lack(bootstrap: str) -> None:
    topic = unique("d6")
    assert "put" in elsewhere(bootstrap, "--help")[1]
    assert elsewhere(bootstrap, "subscribe", topic, "--id", "reader")[0] == 0
    assert elsewhere(bootstrap, "put", topic, "x", "--id", "7")[:2] == (0, f"7 {topic} 0@0\n")
    assert elsewhere(bootstrap, "pending", topic)[1].split()[-2:] == ["reader", "1"]
    assert elsewhere(bootstrap, "get", topic, "--id", "reader")[:2] == (0, "x\n")
    assert elsewhere(bootstrap, "unsubscribe", topic, "--id", "reader")[0] == 0
    status, out, err = elsewhere(bootstrap, "get", topic, "--id", "reader")
    assert (status, out, err.startswith("error: reader has no subscription")) == (1, "", True)


def test_d6_the_clients_of_programs_need_nothing_that_other_systems_lack(bootstrap: str) -> None:
    program = """
import asyncio, os, sys, sapwood
assert not hasattr(os, "fork") and sys.modules["fcntl"] is None
bootstrap, topic = sys.argv[1:]
async def main():
    async with sapwood.AsyncClient(bootstrap, id="reader") as client:
        await client.subscribe(topic)
        with sapwood.Client(bootstrap) as other:
            other.put(topic, "x")
        print((await client.get(topic)).text)
asyncio.run(main())
"""
    path = os.pathsep.join(filter(None, (str(ELSEWHERE), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-c", program, bootstrap, unique("d6")],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.stdout, done.stderr) == ("x\n", "")


def started(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", str(START_SH), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def executable(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(("#!/bin/sh", *lines, "")), encoding="utf-8")
    path.chmod(0o755)
    return path


def test_d6_the_start_script_makes_its_environment_once_and_passes_everything_on(
    tmp_path: Path, bootstrap: str
) -> None:
    """Real but for the installation, which would need a network: it only puts the command there."""
    venv, calls = tmp_path / "an environment", tmp_path / "calls"
    inner = executable(
        tmp_path / "inner",
        f'echo "$@" >> {shlex.quote(str(calls))}',
        'if [ "$2" = pip ]; then cp "$0" "$(dirname "$0")/sapwood"',
        f'else exec {shlex.quote(sys.executable)} "$@"; fi',
    )
    python = executable(
        tmp_path / "python",
        f'if [ "$1" = -c ]; then exec {shlex.quote(sys.executable)} "$@"; fi',
        f'mkdir -p "$3/bin" && cp {shlex.quote(str(inner))} "$3/bin/python"',
    )
    settings = {"SAPWOOD_VENV": str(venv), "PYTHON": str(python), "SAPWOOD_BOOTSTRAP": bootstrap}
    first = started("put", unique("d6"), "a b", "--id", "7", **settings)
    assert (first.returncode, first.stdout.split()[0]) == (0, "7"), first.stderr
    assert f"installing Sapwood into {venv}" in first.stderr
    again = started("nonsense", **settings)
    assert (again.returncode, "installing" in again.stderr) == (2, False)
    assert calls.read_text(encoding="utf-8").count("pip install") == 1


def test_d6_the_start_script_says_which_python_it_needs(tmp_path: Path) -> None:
    old = executable(tmp_path / "python", "exit 1")
    done = started("--help", SAPWOOD_VENV=str(tmp_path / "venv"), PYTHON=str(old))
    assert (done.returncode, done.stdout) == (1, "")
    assert "Python 3.11" in done.stderr


@pytest.mark.parametrize("pair", ["{}", "()", "[]"])
def test_d6_the_script_for_powershell_is_well_formed(pair: str) -> None:
    code = "\n".join(
        line for line in START_PS1.read_text(encoding="utf-8").splitlines() if line[:1] != "#"
    )
    assert code.count(pair[0]) == code.count(pair[1])
    assert code.count('"') % 2 == 0


def test_d6_both_start_scripts_do_the_same() -> None:
    """What this machine can't run is at least held against what it can."""
    ps1 = START_PS1.read_text(encoding="utf-8")
    for words in ("SAPWOOD_VENV", "sys.version_info < (3, 11)", "-m venv", "--editable"):
        assert words in ps1
        assert words in START_SH.read_text(encoding="utf-8")
    *_, run, leave = ps1.splitlines()
    assert run == "& $interpreter -m sapwood @args"
    assert leave == "exit $LASTEXITCODE"
