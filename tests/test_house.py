"""The rules of the house, checked on the source itself: who may import whom, and what stays out."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "sapwood"

MAY_IMPORT: dict[str, set[str]] = {
    "wire": set(),
    "disk": set(),
    "raft": set(),
    "metadata": {"wire"},
    "coordinator": {"wire"},
    "security": {"wire"},
    "tree": {"metadata", "wire"},
    "client": {"security", "wire"},
    "log": {"wire", "disk"},
    "replica": {"log", "raft", "disk", "server", "wire", "security"},
    "server": {"wire", "security"},
    "broker": {"replica", "metadata", "coordinator", "server", "tree", "wire"},
    "edge": {"server", "tree", "client", "log", "disk", "wire", "security"},
    "node": {
        "broker",
        "client",
        "disk",
        "edge",
        "log",
        "metadata",
        "replica",
        "security",
        "server",
        "wire",
    },
    "spark": {"client", "wire"},
    "gateway": {"client"},
    "chaos": {"client"},
    "cli": {"__init__", "chaos", "client", "cluster", "gateway", "log", "node", "spark"},
    # Modules at the top level.
    "__init__": {"client", "cluster"},
    "__main__": {"cli"},
    "bulk": {"client", "spark"},
    "cluster": {"client", "node"},
    "pytest_plugin": {"__init__", "cluster"},
}

# A pure room takes time and randomness as arguments. The shells of the client do its I/O.
PURE_ROOMS = {"wire", "raft", "metadata", "coordinator", "security", "tree", "client"}
SHELLS = {SOURCE / "client" / "aio.py", SOURCE / "client" / "blocking.py"}
IMPURE_MODULES = {
    "asyncio", "random", "secrets", "select", "selectors", "socket", "threading", "time", "uuid",
}  # fmt: skip

# The one place in the tests that waits, always for a condition and with a deadline.
MAY_SLEEP = {ROOT / "tests" / "helpers.py"}
# Here time is virtual, and sleeping takes none.
MAY_SLEEP |= set((ROOT / "tests" / "sim").glob("*.py"))

MOST_LINES = 600
MOST_DOCSTRING_LINES = 10


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@functools.cache
def syntax(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def shown(path: Path, node: ast.AST | None = None) -> str:
    line = f":{node.lineno}" if isinstance(node, ast.stmt | ast.expr) else ""
    return f"{path.relative_to(ROOT)}{line}"


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_modules(path: Path) -> Iterator[tuple[ast.stmt, str]]:
    """Every module that a file imports anywhere in it, relative imports made absolute."""
    package = ("sapwood", *path.relative_to(SOURCE).parts[:-1])
    for node in ast.walk(syntax(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                base = package[: len(package) - node.level + 1]
                module = ".".join((*base, module)).rstrip(".")
            if module == "sapwood":  # from sapwood import x: x may be a room
                for alias in node.names:
                    is_room = alias.name in MAY_IMPORT
                    yield node, f"sapwood.{alias.name}" if is_room else "sapwood"
            else:
                yield node, module


def imported_rooms(path: Path) -> Iterator[tuple[ast.stmt, str]]:
    for node, module in imported_modules(path):
        top, _, rest = module.partition(".")
        if top == "sapwood":
            yield node, rest.partition(".")[0] or "__init__"


def test_every_room_has_a_row_in_the_table_of_imports() -> None:
    rooms = {room_of(path) for path in SOURCE.rglob("*.py")}
    assert rooms - MAY_IMPORT.keys() == set()


def test_the_directions_of_imports_make_no_circle() -> None:
    settled: set[str] = set()
    while remaining := MAY_IMPORT.keys() - settled:
        free = {room for room in remaining if MAY_IMPORT[room] <= settled}
        assert free, f"these rooms import each other in a circle: {sorted(remaining)}"
        settled |= free


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_what_its_row_names(room: str) -> None:
    wrong = [
        f"{shown(path, node)} imports {other}"
        for path in SOURCE.rglob("*.py")
        if room_of(path) == room
        for node, other in imported_rooms(path)
        if other != room and other not in MAY_IMPORT[room]
    ]
    assert wrong == []


def test_pure_rooms_import_no_clock_no_chance_no_thread_and_no_event_loop() -> None:
    wrong = [
        f"{shown(path, node)} imports {module}"
        for path in SOURCE.rglob("*.py")
        if room_of(path) in PURE_ROOMS and path not in SHELLS
        for node, module in imported_modules(path)
        if module.partition(".")[0] in IMPURE_MODULES
    ]
    assert wrong == []


def test_nothing_in_the_source_imports_the_tests_or_the_benchmarks() -> None:
    wrong = [
        f"{shown(path, node)} imports {module}"
        for path in SOURCE.rglob("*.py")
        for node, module in imported_modules(path)
        if module.partition(".")[0] in {"tests", "sim", "bench", "compat", "pytest", "hypothesis"}
        and (room_of(path), module) != ("pytest_plugin", "pytest")
    ]
    assert wrong == []


def test_invariants_raise_named_errors_instead_of_asserting() -> None:
    wrong = [
        shown(path, node)
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(syntax(path))
        if isinstance(node, ast.Assert)
    ]
    assert wrong == []


def test_a_package_opens_with_its_theory_of_operation_in_ten_lines_or_fewer() -> None:
    wrong = []
    for path in SOURCE.rglob("__init__.py"):
        docstring = ast.get_docstring(syntax(path))
        if not docstring or len(docstring.splitlines()) > MOST_DOCSTRING_LINES:
            wrong.append(shown(path))
    assert wrong == []


def test_a_file_is_one_idea_and_stays_within_six_hundred_lines() -> None:
    lengths = {
        shown(path): len(path.read_text(encoding="utf-8").splitlines())
        for path in python_files("src", "tests", "sim", "bench", "compat")
    }
    assert {path: length for path, length in lengths.items() if length > MOST_LINES} == {}


def is_a_wait_for_a_fixed_time(node: ast.AST) -> bool:
    """`time.sleep(…)`, and `asyncio.sleep(…)` for longer than a turn of the loop."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr != "sleep" or not isinstance(node.func.value, ast.Name):
        return False
    turn = [isinstance(it, ast.Constant) and it.value == 0 for it in node.args] == [True]
    return node.func.value.id == "time" or (node.func.value.id == "asyncio" and not turn)


def test_tests_wait_for_conditions_and_never_for_a_fixed_time() -> None:
    wrong = []
    for path in python_files("tests"):
        if path in MAY_SLEEP:
            continue
        for node in ast.walk(syntax(path)):
            imports_sleep = (
                isinstance(node, ast.ImportFrom)
                and node.module in {"time", "asyncio"}
                and any(alias.name == "sleep" for alias in node.names)
            )
            if imports_sleep or is_a_wait_for_a_fixed_time(node):
                wrong.append(shown(path, node))
    assert wrong == []
