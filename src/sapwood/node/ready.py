"""`ready.json`: how a node tells everybody on this machine where it is to be found."""

import contextlib
import json
import os
from pathlib import Path
from typing import TypedDict

FILE_NAME = "ready.json"
LOCK_NAME = "lock"


class Ready(TypedDict):
    pid: int
    node_id: int
    kind: str
    listeners: dict[str, str]
    started: float


def write(directory: Path, ready: Ready) -> None:
    temporary = directory / (FILE_NAME + ".new")
    temporary.write_text(json.dumps(ready) + "\n", encoding="utf-8")
    os.replace(temporary, directory / FILE_NAME)


def read(directory: Path) -> Ready | None:
    try:
        ready: Ready = json.loads((directory / FILE_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return ready


def remove(directory: Path) -> None:
    with contextlib.suppress(OSError):
        (directory / FILE_NAME).unlink()


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def local_address(address: str) -> str:
    """Where this machine reaches it: a wildcard is where one listens, and names differ."""
    host, _, port = address.rpartition(":")
    known = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "localhost": "127.0.0.1", "[::]": "[::1]"}
    return f"{known.get(host, host)}:{port}"
