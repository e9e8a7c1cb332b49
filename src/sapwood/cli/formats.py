"""How a record is printed: kcat's format strings and kcat's JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from sapwood.client.fetcher import ConsumedRecord


class Printable(Protocol):
    """What records of a log and messages of a subscriber have in common."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]: ...


Render = Callable[[Printable], bytes]


class FormatError(ValueError):
    """The format string says something that has no meaning."""


def _headers(record: Printable) -> bytes:
    return b",".join(
        name.encode() + b"=" + (b"NULL" if value is None else value)
        for name, value in record.headers
    )


def _size(content: bytes | None) -> bytes:
    return b"-1" if content is None else b"%d" % len(content)


_TOKENS: dict[str, Render] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "k": lambda record: record.key or b"",
    "s": lambda record: record.value or b"",
    "T": lambda record: b"%d" % record.timestamp,
    "h": _headers,
    "K": lambda record: _size(record.key),
    "S": lambda record: _size(record.value),
}
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "\\": b"\\", "0": b"\0"}


def line_format(template: str) -> Render:
    """Compile a format string; FormatError if it can't be understood."""
    parts: list[bytes | Render] = []
    position = 0
    while position < len(template):
        character = template[position]
        following = template[position + 1 : position + 2]
        position += 2 if character in "%\\" else 1
        if character == "%":
            if following == "%":
                parts.append(b"%")
            elif following in _TOKENS:
                parts.append(_TOKENS[following])
            else:
                known = " ".join(f"%{token}" for token in _TOKENS)
                raise FormatError(f"-f: %{following} isn't one of {known} %%")
        elif character == "\\":
            if following == "x":
                digits = template[position : position + 2]
                position += 2
                try:
                    parts.append(bytes.fromhex(digits))
                except ValueError as error:
                    raise FormatError(f"-f: \\x{digits} isn't a byte: write \\x41") from error
            elif following in _ESCAPES:
                parts.append(_ESCAPES[following])
            else:
                raise FormatError(f"-f: \\{following} isn't one of \\n \\t \\r \\0 \\\\ \\x41")
        else:
            parts.append(character.encode())

    def render(record: Printable) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(record) for part in parts)

    return render


def json_line(record: ConsumedRecord, broker: int) -> bytes:
    """kcat's keys in kcat's order; bytes that aren't UTF-8 are shown as �."""
    fields: dict[str, object] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "tstype": "logappend" if record.timestamp_type else "create",
        "ts": record.timestamp,
        "broker": broker,
    }
    if record.headers:
        fields["headers"] = [
            text for name, value in record.headers for text in (name, _text(value))
        ]
    fields["key"] = _text(record.key)
    fields["payload"] = _text(record.value)
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode(errors="replace")
