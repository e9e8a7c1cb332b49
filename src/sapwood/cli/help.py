"""Help in colours: what to type stands out from what is said about it. Plain if piped."""

from __future__ import annotations

from collections.abc import Iterable

import click


class ColouredHelp(click.HelpFormatter):
    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        prefix = click.style(prefix or "Usage: ", fg="yellow", bold=True)
        super().write_usage(click.style(prog, bold=True), args, prefix)

    def write_heading(self, heading: str) -> None:
        super().write_heading(click.style(heading, fg="yellow", bold=True))

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        coloured = [(click.style(term, fg="cyan"), about) for term, about in rows]
        super().write_dl(coloured, col_max, col_spacing)
