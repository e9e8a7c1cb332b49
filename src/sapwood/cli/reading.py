"""What commands take in: lines of standard input or of files, and headers in words."""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import click

from sapwood.cli.output import Advance

_READ_BYTES = 1024 * 1024

Header = tuple[str, bytes | None]

header_option = click.option(
    "-H",
    "--header",
    "header_pairs",
    multiple=True,
    metavar="NAME=VALUE",
    help="A header for every record. May be repeated.",
)


def headers_of(pairs: Sequence[str]) -> list[Header]:
    headers: list[Header] = []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        headers.append((name, value.encode() if equals else None))
    return headers


def lines_of(
    source: BinaryIO, before_waiting: Callable[[], None], advance: Advance = lambda _: None
) -> Iterator[bytes]:
    """Lines as they come. Before waiting for more input, what was read can be seen safely off."""
    rest = b""
    while chunk := os.read(source.fileno(), _READ_BYTES):
        advance(len(chunk))
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r")
        if not _has_more(source):
            before_waiting()
    if rest:
        yield rest


def size_of(source: BinaryIO) -> int | None:
    """None if it isn't known beforehand."""
    status = os.fstat(source.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def opened(path: Path) -> BinaryIO:
    if str(path) == "-":
        return open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)
    return path.open("rb", buffering=0)


def _has_more(source: BinaryIO) -> bool:
    if size_of(source) is not None:
        return True  # a file never keeps us waiting
    if os.name == "nt":
        return False  # select there knows sockets only
    return bool(select.select([source], [], [], 0)[0])
