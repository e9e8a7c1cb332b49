"""`python -m sim`: what it says, and how it ends."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sim import __main__ as command
from sim.campaign import HEADINGS


@pytest.fixture(autouse=True)
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(command, "TRACES", tmp_path)
    return tmp_path


def run(*words: str) -> Result:
    return CliRunner().invoke(command.main, words)


def test_a_seed_is_repeated_with_its_trace(traces: Path) -> None:
    first, second = run("--tier", "1", "--seed", "3"), run("--tier", "1", "--seed", "3")
    assert first.exit_code == 0
    path = traces / "tier-1" / "seed-3.txt"
    assert str(path) in first.output
    assert path.exists()
    hashes = [it.output.splitlines()[0].partition("trace ")[2] for it in (first, second)]
    assert hashes[0] == hashes[1] != ""


def test_a_campaign_ends_with_its_row_for_the_table() -> None:
    done = run("--tier", "1", "--seeds", "3", "--jobs", "1")
    assert done.exit_code == 0
    assert HEADINGS in done.output
    row = done.output.splitlines()[-1].split(" | ")
    assert row[2:5] == ["1", "3", "0.333 min"]
    assert row[-1] == "clean |"


def test_a_planted_bug_is_found_and_the_seed_named_that_shows_it() -> None:
    found = run("--tier", "1", "--plant", "ack-before-sync", "--jobs", "1")
    assert found.exit_code == 0
    assert "ack-before-sync: found after 1 seed: Broken" in found.output
    assert "python -m sim --tier 1 --seed 1 --plant ack-before-sync" in found.output


def test_the_rules_of_the_tree_are_a_campaign_of_tier_1(traces: Path) -> None:
    again = run("--tier", "1", "--rules", "tree", "--seed", "3")
    assert again.exit_code == 0
    assert (traces / "tier-1-tree" / "seed-3.txt").exists()
    done = run("--tier", "1", "--rules", "tree", "--seeds", "2", "--jobs", "1")
    assert done.exit_code == 0
    assert done.output.splitlines()[-1].split(" | ")[2:4] == ["1, tree", "2"]
    found = run("--tier", "1", "--plant", "orphan-accepts-a-child", "--jobs", "1")
    assert found.exit_code == 0
    assert "orphan-accepts-a-child: found after" in found.output


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--tier", "1", "--plant", "crc-skipped"), "tier 1 has these plants"),
        (("--tier", "2", "--plant", "votes-counted-by-node"), "tier 2 has these plants"),
        (("--tier", "2", "--rules", "tree"), "only tier 1 has rules"),
        (("--tier", "1", "--without-hints"), "know where the others are"),
        (("--tier", "1", "--seed", "1", "--faults", "earthquake"), "no fault is called"),
    ],
)
def test_what_a_tier_does_not_have_is_said_before_anything_runs(
    words: tuple[str, ...], complaint: str
) -> None:
    refused = run(*words)
    assert refused.exit_code == 2
    assert complaint in refused.output
