"""What a message looks like: kio's dataclasses, read once and boiled down to a few facts.

Only the module of the one (API, version, direction) that is asked for gets imported.
"""

import dataclasses
import datetime
import importlib
import sys
import types
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from sapwood.wire.apis import Api, can_code

Direction = Literal["request", "response"]

ZERO_UUID = bytes(16)

# struct's character and the number of bytes of every fixed-size kind
FIXED: dict[str, tuple[str, int]] = {
    "bool": ("?", 1),
    "int8": ("b", 1),
    "int16": ("h", 2),
    "int32": ("i", 4),
    "int64": ("q", 8),
    "uint8": ("B", 1),
    "uint16": ("H", 2),
    "uint32": ("I", 4),
    "uint64": ("Q", 8),
    "float64": ("d", 8),
    "uuid": ("16s", 16),
}

# Times and error codes are plain integers on the wire and stay so.
_SYNONYMS = {
    "error_code": "int16",
    "timedelta_i32": "int32",
    "timedelta_i64": "int64",
    "datetime_i64": "int64",
}

_IMPLICIT_DEFAULTS: dict[str, object] = {
    "bool": False,
    "float64": 0.0,
    "uuid": ZERO_UUID,
    "string": "",
    "bytes": b"",
}


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING = _Missing()


class Struct(types.SimpleNamespace):
    """A message or an entity nested in one; its attributes are the schema's field names."""

    __slots__ = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    name: str
    kind: str  # a key of FIXED, or "string", "bytes", "records", "struct"
    is_array: bool
    nullable: bool
    tag: int | None
    default: object  # MISSING, or a value in the codec's terms
    entity: "Entity | None"


@dataclasses.dataclass(frozen=True, slots=True)
class Entity:
    name: str
    flexible: bool
    fields: tuple[Field, ...]  # in the order of the wire, without the tagged ones
    tagged: tuple[Field, ...]  # ascending tags

    def has_records(self) -> bool:
        return any(
            field.kind == "records" or (field.entity is not None and field.entity.has_records())
            for field in self.fields + self.tagged
        )

    def smallest_size(self) -> int:
        """Bytes that every instance takes, whatever its values; at least one."""
        size = 1 if self.flexible else 0
        for field in self.fields:
            size += _smallest_field(field, self.flexible)
        return max(size, 1)


def _smallest_field(field: Field, flexible: bool) -> int:
    if field.is_array:
        return 1 if flexible else 4
    if field.kind in FIXED:
        return FIXED[field.kind][1]
    if field.entity is not None:
        return 1 if field.nullable else field.entity.smallest_size()
    if flexible:
        return 1
    return 2 if field.kind == "string" else 4


OWN_FIELDS: dict[tuple[int, Direction], tuple[Field, ...]] = {
    (Api.PRODUCE, "request"): (Field("may_queue", "bool", False, False, 20_000, False, None),),
}
"""What Sapwood's clients may say in Kafka's messages. Whoever doesn't know it passes over it.

`may_queue`: who can't reach the cluster may keep the records in its outbox instead, though all
replicas were asked for."""


def load(api: int, version: int, direction: Direction) -> Entity:
    """The schema of one message; ValueError if there is none."""
    if not can_code(api, version):
        raise ValueError(f"no schema for API key {api}, version {version}")
    if api >= Api.NODE_STATUS:
        from sapwood.wire import private

        return describe(private.MESSAGES[api, version][0 if direction == "request" else 1])
    folder = Api(api).name.lower()
    with _kio_without_hypothesis():
        module = importlib.import_module(f"kio.schema.{folder}.v{version}.{direction}")
    # The message itself is the last class of its module; those nested in it come before.
    last = [c for c in vars(module).values() if getattr(c, "__module__", "") == module.__name__][-1]
    described = describe(last)
    if described.flexible and (own := OWN_FIELDS.get((api, direction))):
        described = dataclasses.replace(described, tagged=described.tagged + own)
    return described


@contextmanager
def _kio_without_hypothesis() -> Iterator[None]:
    """kio imports hypothesis wherever it is installed, which costs a node half a second."""
    if "hypothesis" in sys.modules or "kio.static._phantom" in sys.modules:
        yield
        return
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        importlib.import_module("kio.static._phantom")
    finally:
        del sys.modules["hypothesis"]
    yield


def describe(message_class: Any) -> Entity:
    """Facts about a dataclass in kio's style."""
    fields: list[Field] = []
    tagged: list[Field] = []
    for field in dataclasses.fields(message_class):
        described = _describe_field(field)
        (fields if described.tag is None else tagged).append(described)
    tagged.sort(key=lambda field: field.tag or 0)
    return Entity(message_class.__name__, message_class.__flexible__, tuple(fields), tuple(tagged))


def _describe_field(field: "dataclasses.Field[Any]") -> Field:
    type_, nullable = _without_none(field.type)
    is_array = typing.get_origin(type_) is tuple
    if is_array:
        type_, _ = _without_none(typing.get_args(type_)[0])
    tag = field.metadata.get("tag")
    entity = None
    if dataclasses.is_dataclass(type_):
        kind = "struct"
        entity = describe(type_)
    else:
        kind = field.metadata["kafka_type"]
        kind = _SYNONYMS.get(kind, kind)
        # None stands for the zero UUID and for the time -1 in kio, not for a null on the wire.
        nullable = nullable and (is_array or kind not in FIXED)
    default: object = MISSING
    if field.default is not dataclasses.MISSING:
        default = _plain(field.default, kind, is_array)
    elif tag is not None:
        default = _implicit_default(kind, entity)
    return Field(field.name, kind, is_array, nullable, tag, default, entity)


def _without_none(type_: Any) -> tuple[Any, bool]:
    arguments = typing.get_args(type_)
    if type(None) not in arguments:
        return type_, False
    return next(a for a in arguments if a is not type(None)), True


def _plain(value: Any, kind: str, is_array: bool) -> object:
    """A default of kio's, in the codec's terms."""
    if is_array or isinstance(value, tuple):
        return None if value is None else [_plain(item, kind, False) for item in value]
    if value is None:
        return {"uuid": ZERO_UUID, "int64": -1}.get(kind)
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    if isinstance(value, datetime.datetime):
        return round(value.timestamp() * 1000)
    if kind == "uuid":
        return bytes(value.bytes)
    if dataclasses.is_dataclass(value):
        entity = describe(type(value))
        return Struct(
            **{
                field.name: _plain(getattr(value, field.name), field.kind, field.is_array)
                for field in entity.fields + entity.tagged
            }
        )
    if isinstance(value, bool | str | bytes):
        return value
    return float(value) if kind == "float64" else int(value)


def _implicit_default(kind: str, entity: Entity | None) -> object:
    if entity is None:
        return _IMPLICIT_DEFAULTS.get(kind, 0)
    return Struct(
        **{
            field.name: _implicit_default(field.kind, field.entity)
            if field.default is MISSING
            else field.default
            for field in entity.fields + entity.tagged
        }
    )
