"""How a record tells who sent it, and as its how many-eth: two SQL expressions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

from sapwood.client.messages import ID_HEADER, SENDER_HEADER

# Enough for what a regular expression looks for; a large record isn't made a string for it.
_PREFIX_BYTES = 512

KINDS = "put, history, clients, json:PRODUCER,NUMBER, headers:PRODUCER,NUMBER or pattern:REGEX"


class WrongNumbering(ValueError):
    """A way of numbering that isn't known or not complete; says which there are."""


@dataclass(frozen=True, slots=True)
class Numbering:
    """Spark SQL over the columns of the source; null or '' where a record tells nothing."""

    producer: str
    sequence: str
    is_consecutive: bool = True
    """Every number is used, so that one that isn't there is missing."""
    needs_headers: bool = False


def numbered(frame: DataFrame, numbering: Numbering) -> DataFrame:
    """What an audit needs of each record: its place, time and size, its producer and its number."""
    known = frame.selectExpr(
        "topic",
        "partition",
        "offset",
        "timestamp",
        "coalesce(length(key), 0) + coalesce(length(value), 0) as bytes",
        f"nullif({numbering.producer}, '') as producer",
        f"try_cast({numbering.sequence} as bigint) as sequence",
    )
    is_numbered = "producer is not null and sequence is not null"
    return known.selectExpr(
        *("topic", "partition", "offset", "timestamp", "bytes"),
        f"if({is_numbered}, producer, null) as producer",
        f"if({is_numbered}, sequence, null) as sequence",
    )


def numbering_of(text: str) -> Numbering:
    """The one that a user has named."""
    kind, _, rest = text.partition(":")
    make = _KINDS.get(kind)
    if make is None:
        raise WrongNumbering(f"records aren't numbered by {text!r}: choose from {KINDS}")
    return make(rest)


def _by_put(_: str) -> Numbering:
    """Ids that `put` made: a run of the sender and the count of what it put, wherever it went.

    A sender that counts over several topics leaves numbers out in each, so none has to be there.
    """
    sender, message_id = _header(SENDER_HEADER), _header(ID_HEADER)
    run = f"regexp_extract({message_id}, {_quoted(r'^(.*?)-?([0-9]{1,18})$')}, 1)"
    producer = f"concat_ws('/', {sender}, nullif(nullif({run}, ''), {sender}))"
    number = f"regexp_extract({message_id}, {_quoted(r'([0-9]{1,18})$')}, 1)"
    return Numbering(producer, number, is_consecutive=False, needs_headers=True)


def _by_json(rest: str) -> Numbering:
    producer, number = _two("json", rest or "producer,sequence")
    value = "cast(value as string)"
    return Numbering(
        f"get_json_object({value}, {_quoted('$.' + producer)})",
        f"get_json_object({value}, {_quoted('$.' + number)})",
    )


def _by_headers(rest: str) -> Numbering:
    producer, number = _two("headers", rest or "producer,sequence")
    return Numbering(_header(producer), _header(number), needs_headers=True)


def _by_pattern(rest: str) -> Numbering:
    if rest.count("(") < 2:
        raise WrongNumbering("pattern: give an expression with two groups, producer and number")
    text = f"cast(substring(value, 1, {_PREFIX_BYTES}) as string)"
    return Numbering(
        f"regexp_extract({text}, {_quoted(rest)}, 1)", f"regexp_extract({text}, {_quoted(rest)}, 2)"
    )


_KINDS: dict[str, Callable[[str], Numbering]] = {
    "put": _by_put,
    # What the producers of `make chaos`, and the publishers of `sapwood chaos clients`, write.
    "history": lambda _: _by_pattern(r"^([^|]*):([0-9]{1,18})\|"),
    "clients": lambda _: _by_pattern(r"^(\S+) ([0-9]{1,18})$"),
    "json": _by_json,
    "headers": _by_headers,
    "pattern": _by_pattern,
}


def _two(kind: str, rest: str) -> tuple[str, str]:
    producer, _, number = rest.partition(",")
    if not producer or not number:
        raise WrongNumbering(f"{kind}: give two names, as in {kind}:producer,sequence")
    return producer, number


def _header(name: str) -> str:
    found = f"filter(headers, each -> each.key = {_quoted(name)})"
    return f"cast(try_element_at({found}, 1).value as string)"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
