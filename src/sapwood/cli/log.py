"""`sapwood log`: what lies in a node's files, made readable."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sapwood.cli import CommandFailed

if TYPE_CHECKING:
    from sapwood.log.dump import EntryRow, Row

_SEGMENT = re.compile(r"\d{20}\.log")
_HEADINGS = (
    f"{'POSITION':>12} {'BYTES':>9} {'OFFSETS':>21} {'RECORDS':>8} {'EPOCH':>6} "
    f"{'APPENDED (UTC)':<24} {'CODEC':<7} PRODUCER"
)


@click.group()
def log() -> None:
    """Look into logs on disk."""


@log.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--records", is_flag=True, help="The records of each batch, too.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="A table for people or one JSON object per line for programs.",
)
def dump(path: Path, records: bool, output: str) -> None:
    """Show the batches of a log: of a segment file, a partition's directory or all below PATH.

    It only reads, so the node may be running. The exit status is 1 if anything is damaged.
    """
    damaged = 0
    for row in _rows(path, records):
        damaged += bool(row.problem)
        if output == "json":
            click.echo(json.dumps(_json(row), ensure_ascii=False))
        else:
            _print(row)
    if damaged:
        places = "1 place is" if damaged == 1 else f"{damaged} places are"
        raise CommandFailed(f"{places} damaged: see PROBLEM above, and refill from a replica")


def _rows(path: Path, records: bool) -> Iterator[Row]:
    from sapwood.log.dump import dump

    directories = {found.parent for found in path.rglob("*.log") if _SEGMENT.fullmatch(found.name)}
    if path.is_dir() and not directories:
        raise CommandFailed(f"{path} holds no log: give a node's data directory or one below it")
    last_path = ""
    for place in sorted(directories) or [path]:
        for row in dump(str(place), records=records):
            if row.path != last_path:
                last_path = row.path
                click.echo(click.style(row.path, bold=True), err=True)
            yield row


def _print(row: Row) -> None:
    from sapwood.log.dump import EntryRow

    if not isinstance(row, EntryRow):
        click.echo(f"{row.position:>12} {row.size:>9} " + _problem(row.problem))
        return
    if row.position == 0:
        click.echo(_HEADINGS)
    appended = datetime.fromtimestamp(row.append_time_ms / 1000, UTC)
    click.echo(
        f"{row.position:>12} {row.size:>9} {f'{row.base_offset}–{row.last_offset}':>21} "
        f"{row.record_count:>8} {row.leader_epoch:>6} "
        f"{appended:%Y-%m-%d %H:%M:%S}.{row.append_time_ms % 1000:03} {row.codec:<7} "
        + _producer(row)
        + (" " + _problem(row.problem) if row.problem else "")
    )
    for record in row.records:
        headers = "".join(f" {name}={_text(value)}" for name, value in record.headers)
        click.echo(
            f"{'':>12} {record.offset:>20} {record.timestamp:>14} "
            f"{_text(record.key)}: {_text(record.value)}{headers}"
        )


def _producer(row: EntryRow) -> str:
    from sapwood.log import FIRST_ID

    if row.producer_id >= FIRST_ID:
        return f"id {row.producer_id - FIRST_ID:x}:{row.base_sequence:x}"
    words = [f"{row.producer_id}/{row.producer_epoch}" if row.producer_id >= 0 else "-"]
    if row.base_sequence >= 0:
        words.append(f"from {row.base_sequence}")
    if row.control:
        words.append(row.control)
    elif row.transactional:
        words.append("transactional")
    return " ".join(words)


def _problem(text: str) -> str:
    return click.style(f"PROBLEM: {text}", fg="red")


def _text(content: bytes | None) -> str:
    return "null" if content is None else content.decode(errors="backslashreplace")


def _json(row: Row) -> dict[str, Any]:
    from sapwood.log.dump import EntryRow

    fields = asdict(row)
    if isinstance(row, EntryRow):
        fields["records"] = [
            {
                "offset": record.offset,
                "timestamp": record.timestamp,
                "key": None if record.key is None else _text(record.key),
                "value": None if record.value is None else _text(record.value),
                "headers": [
                    [name, None if value is None else _text(value)]
                    for name, value in record.headers
                ],
            }
            for record in row.records
        ]
    return fields
