"""`python -m compat java`: what Kafka's Java clients and tools see of a node, and saw of Kafka."""

import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

import sapwood
from bench.peers.kafka import VERSION
from compat import judge
from compat.judge import Observation
from compat.suite import SuiteFailed
from compat.tools import ToolResult, run_tools

# What Apache Kafka does by default, and the recorded observations rely on.
CONFIG = {"num_partitions": 1, "auto_create_topics": True}


@click.command()
@click.option("--bootstrap", metavar="HOST:PORT", help="A broker that runs already.  [a new node]")
@click.option("--record", is_flag=True, help="Keep what this broker, a real Kafka, shows.")
def java(bootstrap: str | None, record: bool) -> None:
    """Use a node through Kafka's Java clients and tools, and compare with Kafka itself."""
    for program in ("java", "javac", "mvn"):
        if shutil.which(program) is None:
            raise click.ClickException(
                f"{program} is missing (Debian: default-jdk-headless, maven)"
            )
    try:
        libraries = judge.jars()
        with _broker(bootstrap) as address:
            observations = judge.observe(libraries, address)
            tools = [] if record else run_tools(libraries, address)
    except SuiteFailed as error:
        raise click.ClickException(str(error)) from error
    if record:
        judge.record(observations)
        print(f"{len(observations)} observations recorded")
        return
    sys.exit(1 if show_observations(observations) + show_tools(tools) else 0)


@contextmanager
def _broker(bootstrap: str | None) -> Iterator[str]:
    if bootstrap:
        yield bootstrap
    else:
        with sapwood.Cluster(config=CONFIG) as cluster:
            yield cluster.bootstrap


def show_observations(observations: list[Observation]) -> int:
    """Print a row for each group, then all that differs; the number of failures."""
    kafka = {it.name: it for it in judge.recorded()}
    seen = {it.name: it for it in observations}
    known = judge.deviations()
    same, deviating, failed = Counter[str](), Counter[str](), Counter[str]()
    reasons: dict[str, list[str]] = {}
    failures = []
    for name, it in {**kafka, **seen}.items():
        is_same = name in kafka and name in seen and kafka[name].meaning == seen[name].meaning
        reason = judge.reason_for(it, known)
        if is_same and reason is None:
            same[it.group] += 1
        elif reason is not None and not is_same:
            deviating[it.group] += 1
            reasons.setdefault(reason, []).append(name)
        else:
            failed[it.group] += 1
            failures.append(_failure(name, kafka.get(name), seen.get(name), reason))
    console = Console()
    table = Table(Column("checks", no_wrap=True), "passed", "deviating as listed", "failed")
    for group in dict.fromkeys(it.group for it in (*kafka.values(), *observations)):
        counts = [str(counter[group] or "") for counter in (same, deviating, failed)]
        table.add_row(group, Text(counts[0], "green"), counts[1], Text(counts[2], "bold red"))
    console.print(table)
    for reason, names in reasons.items():
        console.print(Text(f"{reason}: {len(names)}"))
    for failure in failures:
        console.print(Text(failure, "red"))
    console.print(
        f"{same.total()} as with Kafka {VERSION}, {deviating.total()} deviating as listed, "
        f"{failed.total()} failed"
    )
    return failed.total()


def _failure(
    name: str, kafka: Observation | None, seen: Observation | None, reason: str | None
) -> str:
    if kafka is not None and seen is not None and kafka.meaning == seen.meaning:
        return f"{name}: as with Kafka, so it has to leave the list ({reason})"
    told = [it.value if it else "nothing" for it in (kafka, seen)]
    return f"{name}\n  Kafka:   {told[0]}\n  Sapwood: {told[1]}"


def show_tools(results: list[ToolResult]) -> int:
    console = Console()
    table = Table(Column("tool", no_wrap=True), "result")
    for it in results:
        table.add_row(it.title, Text("failed", "red") if it.problem else Text("passed", "green"))
    console.print(table)
    problems = [it for it in results if it.problem]
    for it in problems:
        console.print(Text(f"{it.title} {it.problem}", "red"))
    console.print(f"{len(results)} uses of tools, {len(problems)} failed")
    return len(problems)
