"""How commands speak: tables and JSON on standard output, progress on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="A table for people or JSON for programs.",
)


def print_json(value: object) -> None:
    click.echo(json.dumps(value, ensure_ascii=False))


def table_of(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """Left-aligned text, right-aligned numbers."""
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column, heading in enumerate(headings):
        is_number = bool(rows) and all(isinstance(row[column], int | float) for row in rows)
        table.add_column(heading, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    return table


def console() -> Console:
    """Standard output for tables; plain if nobody is watching."""
    from rich.console import Console

    # Without a terminal a table must not be folded to a width that nobody has.
    width = None if sys.stdout.isatty() else 100_000
    return Console(width=width, soft_wrap=width is not None, highlight=False, markup=False)


def print_table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    console().print(table_of(headings, rows))


class Screen:
    """Where reports are shown: one after the other, or, on a terminal, in place of each other."""

    def __init__(self, is_watched: bool) -> None:
        from rich.live import Live

        self._console = console()
        is_live = is_watched and sys.stdout.isatty()
        self._live = Live(console=self._console, auto_refresh=False) if is_live else None

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, drawn: RenderableType) -> None:
        if self._live is not None:
            self._live.update(drawn, refresh=True)
        else:
            self._console.print(drawn)


def _cell(value: object) -> str | Text:
    from rich.text import Text

    if isinstance(value, Text):
        return value
    if isinstance(value, float):
        return f"{value:,.1f}"
    return "-" if value is None else str(value)


def say(text: str) -> None:
    """Chatter: worth knowing, no result."""
    click.echo(text, err=True)


@contextmanager
def progress(label: str, total: int | None, *, unit: str, quiet: bool = False) -> Iterator[Advance]:
    """A bar on standard error if that is a terminal; call what is handed out to move it."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    counts: Any = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        counts,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(label, total=total)
        yield lambda step: bar.advance(task, step)


Advance = Callable[[int], None]
