"""Which columns become messages, and what is said of those that can't."""

from __future__ import annotations

from collections.abc import Sequence

_BYTES = ("binary", "string")
# As Spark's Kafka sink has them, and the time. What else a frame has stays behind.
_TYPES = {
    "key": _BYTES,
    "value": _BYTES,
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
}


class UnsuitableColumns(ValueError):
    """The data's columns can't become messages; says which, and what they should be."""


def written_columns(
    schema: Sequence[tuple[str, str]],
    *,
    has_topic: bool,
    with_headers: bool,
    with_timestamps: bool,
) -> list[str]:
    """Of a frame's columns and their types in Spark's words: the names of those that count.

    `has_topic`: all go to one topic, whatever the rows say.
    """
    present = dict(schema)
    wanted = ["key", "value", "partition"]
    wanted += ["headers"] if with_headers else []
    wanted += ["timestamp"] if with_timestamps else []
    wanted += [] if has_topic else ["topic"]
    for name in wanted:
        kind = present.get(name)
        if kind is not None and kind not in _TYPES[name]:
            raise UnsuitableColumns(
                f"column {name!r} is {kind}, but must be {' or '.join(_TYPES[name])}: cast it first"
            )
    if "value" not in present:
        raise UnsuitableColumns(
            f"there is no column 'value' among {', '.join(present) or 'no columns'}: select one "
            "under this name"
        )
    if not has_topic and "topic" not in present:
        raise UnsuitableColumns(
            "nothing says which topic to write to: set the option topic, or add a column 'topic'"
        )
    return [name for name in wanted if name in present]
