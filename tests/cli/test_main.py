"""The command `sapwood` itself: help, lazy loading, errors, completion."""

import ast
import os
import subprocess
import sys

import click
import pytest

import sapwood as package
from sapwood.cli import COMMANDS, LazyGroup, sapwood_command
from tests.cli.command import COMMAND, on_a_terminal, said, sapwood
from tests.helpers import eventually


def test_help_names_every_command() -> None:
    out, _ = sapwood("--help")
    for name, entry in COMMANDS.items():
        assert f"  {name} " in out
        assert entry.summary in out


def test_help_is_coloured_on_a_terminal_unless_that_is_not_wanted() -> None:
    coloured, plain = on_a_terminal("--help"), on_a_terminal("--help", NO_COLOR="1")
    assert "\x1b[36mtopic" in coloured
    assert "\x1b[" not in plain
    assert "\x1b[" not in sapwood("--help")[0]
    assert click.unstyle(coloured) == plain


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_where_the_table_says_and_tells_the_same_of_itself(name: str) -> None:
    group = sapwood_command
    assert isinstance(group, LazyGroup)
    command = group.get_command(click.Context(group), name)
    assert command is not None
    assert command.name == name
    summary = COMMANDS[name].summary.removesuffix(".")
    assert command.get_short_help_str(500).startswith(summary)


def modules_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(sorted(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    )
    found: list[str] = ast.literal_eval(result.stdout)
    return set(found)


def test_importing_the_command_line_loads_nothing_that_takes_long() -> None:
    loaded = modules_after("import sapwood.cli")
    assert loaded.isdisjoint(
        {"rich", "asyncio", "kio", "msgspec", "sapwood.client", "sapwood.node"}
    )
    assert "sapwood.cli.topic" not in loaded


def test_an_unknown_command_or_option_is_wrong_usage() -> None:
    assert "No such command" in said("nonsense", fails=2)
    assert "No such option" in said("topic", "ls", "--nonsense", fails=2)


def test_the_version_is_printed() -> None:
    out, _ = sapwood("--version")
    assert out.startswith("sapwood 0.")


def test_a_cluster_that_is_not_there_is_reported_in_one_line_that_says_what_to_do() -> None:
    line = said("topic", "ls", "-b", "127.0.0.1:1")
    assert "127.0.0.1:1" in line
    assert "sapwood up" in line


def test_without_an_address_the_cluster_of_this_machine_is_found(
    cluster: package.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_topics({"found": 1})
    monkeypatch.setenv("SAPWOOD_DIR", str(cluster.data_dir))
    assert "found" in sapwood("topic", "ls")[0]


def test_an_address_that_is_none_is_wrong_usage() -> None:
    assert "isn't an address" in said("topic", "ls", "-b", "host:port", fails=2)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_the_shell(shell: str) -> None:
    out, _ = sapwood("completion", shell)
    assert "_SAPWOOD_COMPLETE" in out


def test_the_shell_completes_commands_options_and_topics(bootstrap: str) -> None:
    sapwood("topic", "create", "completed-topic", bootstrap=bootstrap)

    def completed(words: str, index: int) -> str:
        environment = {
            **os.environ,
            "_SAPWOOD_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(index),
            "SAPWOOD_BOOTSTRAP": bootstrap,
        }
        return subprocess.run(COMMAND, env=environment, capture_output=True, text=True).stdout

    assert "plain,produce" in completed("sapwood pro", 1)
    assert "plain,--partition" in completed("sapwood consume --par", 2)
    # A cluster that doesn't answer at once has no topics for somebody who is typing.
    eventually(lambda: "plain,completed-topic" in completed("sapwood consume completed-", 2))


def test_a_reader_of_the_output_that_goes_away_is_no_error(bootstrap: str) -> None:
    sapwood("produce", "-q", "piped", bootstrap=bootstrap, stdin=b"line\n" * 50_000)
    consume = subprocess.Popen(
        [*COMMAND, "consume", "piped", "-e", "-b", bootstrap],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert consume.stdout is not None
    assert consume.stderr is not None
    assert consume.stdout.readline() == b"line\n"
    consume.stdout.close()
    assert consume.stderr.read() == b""
    consume.stderr.close()
    consume.wait(30)
