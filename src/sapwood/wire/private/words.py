"""How a private message is written down: one base class, and one function per kind of field."""

from dataclasses import MISSING, dataclass, field
from typing import Any, ClassVar


class Message:
    """A dataclass that only describes: to make the methods of usual ones would cost start-up."""

    __flexible__: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        cls.__doc__ = cls.__doc__ or cls.__name__  # else dataclass makes one, slowly
        dataclass(init=False, repr=False, eq=False)(cls)

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


def _kind(kind: str, default: Any) -> Any:
    return field(metadata={"kafka_type": kind}, default=default)


def boolean(default: Any = MISSING) -> Any:
    return _kind("bool", default)


def int8(default: Any = MISSING) -> Any:
    return _kind("int8", default)


def int16(default: Any = MISSING) -> Any:
    return _kind("int16", default)


def int32(default: Any = MISSING) -> Any:
    return _kind("int32", default)


def int64(default: Any = MISSING) -> Any:
    return _kind("int64", default)


def float64(default: Any = MISSING) -> Any:
    return _kind("float64", default)


def string(default: Any = MISSING) -> Any:
    return _kind("string", default)


def uuid(default: Any = MISSING) -> Any:
    return _kind("uuid", default)


def binary(default: Any = MISSING) -> Any:
    """Bytes that are copied, in and out."""
    return _kind("bytes", default)


def buffers(default: Any = MISSING) -> Any:
    """Bytes that are never copied: read as a view, written from one buffer or a list of them."""
    return _kind("records", default)


def tagged(tag: int, described: Any) -> Any:
    """The field as a tagged one: written where it differs from its default, else left out."""
    return field(metadata={**described.metadata, "tag": tag}, default=described.default)
