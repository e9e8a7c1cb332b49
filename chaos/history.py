"""A run's history: what every client did and saw, and every fault, in a file others can read.

`history.jsonl` holds one JSON object per line, in the order in which things were finished. `op`
says what it is; a field that has its default is left out. Times (`at`: begun, `done`: finished)
are seconds of a monotonic clock since the start of the run.

start    the first line: version (1), seed, nodes, replicas, began (UTC), about (free form)
send     a record handed to a producer: client, topic, partition, value, at, done, outcome,
         offset, node, error
read     records at consecutive offsets, the first at `offset`: client, topic, partition, offset,
         values, at, done, node, error, final
end      where a partition ends (ListOffsets, latest): client, topic, partition, at, done,
         outcome, offset, node, error
copy     like read, of one node's own replica after healing: node, topic, partition, offset, values
mended   a damaged copy that a node has put aside and filled again: node, topic, partition
offline  a partition that couldn't be read at the end: node, topic, partition, reason
fault    name, nodes, at, done, about (free form)
trouble  what a client was told beside its operations: client, at, error, fatal

`outcome` is ok (acknowledged, at `offset`), fail (refused, with `error`) or unknown (no answer;
then there may be no `done`). A record that wasn't acknowledged may be in the log or not. `node`
is the node that answered, -1 where the client doesn't tell. A read with `final` belongs to a
reading of whole partitions after healing. A value is `producer:number`, and one producer counts
up: the record on the wire is that text and "|", repeated to the record's size, and whatever is
not of that form is noted as `damaged:…`. Controls take offsets, too: a gap alone means nothing.
"""

import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

FILE_NAME = "history.jsonl"
VERSION = 1
Outcome = Literal["ok", "fail", "unknown"]

_WRITE_AT_BYTES = 256 << 10
_SEPARATOR = b"|"


class _Line(msgspec.Struct, tag_field="op", tag=str.lower, omit_defaults=True):
    pass


class Start(_Line, kw_only=True):
    version: int
    seed: int
    nodes: int
    replicas: int
    began: str
    about: dict[str, Any] = {}


class Send(_Line, kw_only=True):
    client: str
    topic: str
    partition: int = -1
    value: str
    at: float
    done: float | None = None
    outcome: Outcome = "unknown"
    offset: int = -1
    node: int = -1
    error: str = ""


class Read(_Line, kw_only=True):
    client: str
    topic: str
    partition: int
    offset: int
    values: list[str] = []
    at: float
    done: float
    node: int = -1
    error: str = ""
    final: bool = False


class End(_Line, kw_only=True):
    client: str
    topic: str
    partition: int
    at: float
    done: float | None = None
    outcome: Outcome = "unknown"
    offset: int = -1
    node: int = -1
    error: str = ""


class Copy(_Line, kw_only=True):
    node: int
    topic: str
    partition: int
    offset: int
    values: list[str]


class Offline(_Line, kw_only=True):
    node: int = -1
    topic: str
    partition: int
    reason: str


class Mended(_Line, kw_only=True):
    node: int
    topic: str
    partition: int


class Fault(_Line, kw_only=True):
    name: str
    nodes: list[int]
    at: float
    done: float | None = None
    about: dict[str, Any] = {}


class Trouble(_Line, kw_only=True):
    client: str
    at: float
    error: str
    fatal: bool = False


Line = Start | Send | Read | End | Copy | Mended | Offline | Fault | Trouble


class Recorder:
    """Takes lines from any thread; what was recorded is on its way to the file."""

    def __init__(
        self, directory: Path, *, seed: int, nodes: int, replicas: int, about: dict[str, Any]
    ) -> None:
        self.path = directory / FILE_NAME
        self.acknowledged = 0
        self.refused = 0
        self.records_read = 0
        self.fatal = 0
        self.acknowledged_at: dict[tuple[str, int], float] = {}
        """When the record was sent that each partition acknowledged last."""
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._encoder = msgspec.json.Encoder()
        self._buffer = bytearray()
        self._file = self.path.open("wb")
        began = datetime.now(UTC).isoformat(timespec="seconds")
        self.add(
            Start(
                version=VERSION, seed=seed, nodes=nodes, replicas=replicas, began=began, about=about
            )
        )

    def now(self) -> float:
        return round(time.monotonic() - self._began, 6)

    def add(self, line: Line) -> None:
        with self._lock:
            self._count(line)
            self._encoder.encode_into(line, self._buffer, len(self._buffer))
            self._buffer += b"\n"
            if len(self._buffer) >= _WRITE_AT_BYTES:
                self._write()

    def close(self) -> None:
        with self._lock:
            if not self._file.closed:
                self._write()
                self._file.close()

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _count(self, line: Line) -> None:
        match line:
            case Send(outcome="ok"):
                self.acknowledged += 1
                self.acknowledged_at[line.topic, line.partition] = line.at
            case Send(outcome="fail"):
                self.refused += 1
            case Read():
                self.records_read += len(line.values)
            case Trouble(fatal=True):
                self.fatal += 1
            case _:
                pass

    def _write(self) -> None:
        self._file.write(self._buffer)
        self._buffer.clear()


class History:
    """Every line of a run, sorted by kind."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self.start = Start(version=VERSION, seed=0, nodes=1, replicas=1, began="")
        self.sends: list[Send] = []
        self.reads: list[Read] = []
        self.ends: list[End] = []
        self.copies: list[Copy] = []
        self.mended: list[Mended] = []
        self.offline: list[Offline] = []
        self.faults: list[Fault] = []
        self.troubles: list[Trouble] = []
        for line in lines:
            self._take(line)

    @classmethod
    def load(cls, directory: Path) -> "History":
        return cls(lines(directory / FILE_NAME))

    def _take(self, line: Line) -> None:
        match line:
            case Send():
                self.sends.append(line)
            case Read():
                self.reads.append(line)
            case End():
                self.ends.append(line)
            case Copy():
                self.copies.append(line)
            case Mended():
                self.mended.append(line)
            case Offline():
                self.offline.append(line)
            case Fault():
                self.faults.append(line)
            case Trouble():
                self.troubles.append(line)
            case Start():
                self.start = line


def lines(path: Path) -> Iterator[Line]:
    decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)
    with path.open("rb") as file:
        for text in file:
            yield decoder.decode(text)


def runs(records: Iterable[tuple[int, str]]) -> Iterator[tuple[int, list[str]]]:
    """(first offset, values) for each stretch of consecutive offsets."""
    first, values = -1, list[str]()
    for offset, value in records:
        if values and offset != first + len(values):
            yield first, values
            values = []
        if not values:
            first = offset
        values.append(value)
    if values:
        yield first, values


def on_the_wire(value: str, size_bytes: int) -> bytes:
    """A record's content: it says of every byte what it must be."""
    unit = value.encode() + _SEPARATOR
    return (unit * (size_bytes // len(unit) + 1))[: max(size_bytes, len(unit))]


def from_the_wire(content: bytes | None) -> str:
    if content is None:
        return "damaged:null"
    name = content.partition(_SEPARATOR)[0].decode(errors="replace")
    if on_the_wire(name, len(content)) == content:
        return name
    return f"damaged:{zlib.crc32(content):08x}:{content[:40]!r}"
