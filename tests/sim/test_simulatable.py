"""No clock, chance or thread of the system creeps into what the simulator runs."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = ROOT / "src" / "sapwood"
ROOMS = (
    "broker",
    "client",
    "coordinator",
    "edge",
    "log",
    "metadata",
    "raft",
    "replica",
    "security",
    "server",
)

SYSTEM_MODULES = {"concurrent", "datetime", "multiprocessing", "random", "secrets", "subprocess"}
SYSTEM_MODULES |= {"threading", "time", "uuid"}
SYSTEM_CALLS = {"create_subprocess_exec", "run_in_executor", "to_thread", "urandom"}

# Every use there is, each with how the simulator gets around it.
SEAMS = {
    ("broker/broker.py", "urandom"),  # the default of an argument
    ("broker/state.py", "time.time_ns"),
    ("client/aio.py", "random.random"),  # replaced by the simulator's client, as are these two
    ("client/aio.py", "time.monotonic"),
    ("client/aio.py", "time.time"),
    ("client/config.py", "urandom"),  # the default of an argument
    ("edge/edge.py", "urandom"),  # the default of an argument
    ("log/compact.py", "create_subprocess_exec"),  # replaced by work for the simulated disk
    ("log/compact_worker.py", "threading.Thread"),  # the helper process itself
    ("replica/peers.py", "urandom"),  # the default of an argument
    ("replica/replicas.py", "urandom"),
    ("server/server.py", "urandom"),
}
# The blocking client is a shell of its own, for threads.
NOT_SIMULATED = {"client/blocking.py"}


def uses(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    modules = {
        alias.asname or alias.name.partition(".")[0]: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name.partition(".")[0] in SYSTEM_MODULES
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if module.partition(".")[0] in SYSTEM_MODULES:
                yield from (f"{module}.{alias.name}" for alias in node.names)
            elif module in {"os", "asyncio"}:
                yield from (it.name for it in node.names if it.name in SYSTEM_CALLS)
        elif isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id in modules:
                yield f"{modules[node.value.id]}.{node.attr}"
            elif node.attr in SYSTEM_CALLS:
                yield node.attr


def test_what_is_simulated_takes_time_and_chance_from_outside_except_at_known_seams() -> None:
    found = {
        (name, use)
        for room in ROOMS
        for path in (SOURCE / room).rglob("*.py")
        if (name := path.relative_to(SOURCE).as_posix()) not in NOT_SIMULATED
        for use in uses(path)
    }
    assert found - SEAMS == set(), "take these through an argument, or declare the seam"
    assert SEAMS - found == set(), "these seams have gone: take them off the list"
