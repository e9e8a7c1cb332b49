"""`python -m compat`: kafka-python's own suite against a node.

`python -m compat java`: Kafka's own clients and tools; `python -m compat spark`: Spark's connector.
"""

import sys

import click
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

import sapwood
from compat.connector import spark
from compat.report import java
from compat.suite import Expectations, Outcome, SuiteFailed, expectations, fetch, run

COLOURS = {"passed": "green", "failed": "red", "skipped": "yellow"}


@click.group(invoke_without_command=True)
@click.option("--bootstrap", metavar="HOST:PORT", help="A broker that runs already.  [a new node]")
@click.option("--edge", is_flag=True, help="Through an edge of a new node.")
@click.option("-k", "only", metavar="EXPRESSION", help="Only the tests that match, as in pytest.")
@click.pass_context
def main(context: click.Context, bootstrap: str | None, edge: bool, only: str | None) -> None:
    """Run kafka-python's integration suite and compare with what is expected."""
    if context.invoked_subcommand is not None:
        return
    expected = expectations()
    try:
        root = fetch()
        if bootstrap:
            outcomes = run(root, bootstrap, expected, only)
        else:
            config = {"num_partitions": 4, "auto_create_topics": True}
            with sapwood.Cluster(config=config, edges=int(edge)) as cluster:
                at = cluster.edge_address() if edge else cluster.bootstrap
                outcomes = run(root, at, expected, only)
    except SuiteFailed as error:
        raise click.ClickException(str(error)) from error
    surprises = show(outcomes, expected)
    unknown = set() if only else expected.unmet.keys() - {it.test for it in outcomes}
    for test in sorted(unknown):
        print(f"in the table, but not in the suite: {test}", file=sys.stderr)
    sys.exit(1 if surprises or unknown else 0)


def surprise(outcome: Outcome, expected: Expectations) -> bool:
    """Whether a test passed that the table lists, or didn't that it doesn't."""
    return (outcome.result == "passed") == (outcome.test in expected.unmet)


def show(outcomes: list[Outcome], expected: Expectations) -> int:
    """Print every test; the number of those that went otherwise than expected."""
    console = Console()
    table = Table(Column("test", no_wrap=True), "result", "needs")
    for outcome in outcomes:
        result = Text(outcome.result, COLOURS[outcome.result])
        if outcome.again:
            result.append(" at the second try", "yellow")
        if surprise(outcome, expected):
            result.append(" unexpected", "bold red")
        table.add_row(Text(short(outcome.test)), result, expected.unmet.get(outcome.test, ""))
    console.print(table)
    surprises = [outcome for outcome in outcomes if surprise(outcome, expected)]
    for outcome in surprises:
        need = expected.unmet.get(outcome.test)
        said = f"the table says that it needs {need}" if need else outcome.message
        console.print(Text(f"{short(outcome.test)} {outcome.result}: {said}"))
    counts = [sum(it.result == result for it in outcomes) for result in COLOURS]
    summary = ", ".join(f"{n} {result}" for n, result in zip(counts, COLOURS, strict=True))
    summary += f", {sum(it.again for it in outcomes)} tried twice"
    console.print(f"{len(outcomes)} tests: {summary}; {len(surprises)} otherwise than expected")
    return len(surprises)


def short(test: str) -> str:
    return test.removeprefix("test_").replace("_integration::test_", ": ")


main.add_command(java)
main.add_command(spark)

if __name__ == "__main__":
    main()
