"""Stories of the tree, told line by line: each goes exactly as it is written."""

from pathlib import Path

import pytest

from tests.tree.stage import played

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda it: it.stem)
def test_a_script_goes_as_it_is_written(path: Path) -> None:
    script = path.read_text(encoding="utf-8")
    assert played(script) == script
