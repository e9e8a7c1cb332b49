"""Log lines of commands that have something to tell while they work: levelled, on stderr."""

from __future__ import annotations

from typing import Any

import click


def _configure(context: click.Context, _: click.Parameter, level: str) -> None:
    if not context.resilient_parsing:
        from sapwood.node import logs

        logs.configure(level, "console")


def log_level_option(function: Any) -> Any:
    option = click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="info",
        show_default=True,
        envvar="SAPWOOD_LOG_LEVEL",
        expose_value=False,
        callback=_configure,
        help="What is worth a line on standard error.",
    )
    return option(function)
