"""The documentation says what is so: its tables and links are held against the thing itself."""

import re
import tomllib
from pathlib import Path

import pytest

from sapwood.wire.apis import Api
from sapwood.wire.codec import decode_response
from tests.faults.raw import Wire, request
from tests.helpers import port_of

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
COMPATIBILITY = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")


def test_the_table_of_apis_is_what_a_node_says_of_itself(bootstrap: str) -> None:
    with Wire(port_of(bootstrap)) as wire:
        answer = wire.ask(request(Api.API_VERSIONS, 0, b""))
    assert answer is not None
    told = {
        it.api_key: (it.min_version, it.max_version)
        for it in decode_response(Api.API_VERSIONS, 0, answer, 4).api_keys
    }
    rows = re.findall(r"^\| (\d+) \| (\w+) \| (\d+)(?:–(\d+))? \|$", COMPATIBILITY, re.MULTILINE)
    written = {int(key): (int(low), int(high or low)) for key, _, low, high in rows}
    assert written == told
    for key, name, _, _ in rows:
        assert name.upper() == Api(int(key)).name.replace("_", "")


def test_every_foreign_test_that_does_not_pass_is_listed_with_its_reason() -> None:
    table = tomllib.loads((ROOT / "compat" / "kafka_python.toml").read_text(encoding="utf-8"))
    for need, tests in table["needs"].items():
        for test in tests:
            name = test.partition("::test_")[2]
            assert re.search(rf"^\| `{name}` \| {need}", COMPATIBILITY, re.MULTILINE), test


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_inside_the_project_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    missing = [it for it in targets if "://" not in it and not (page.parent / it).exists()]
    assert missing == []


def test_the_readme_opens_with_what_it_is_and_the_two_commands() -> None:
    opening = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## ")[0]
    assert "make run" in opening
    assert "make test" in opening
