"""How a bug is planted: a patch of the shipped code, or of what stands in for it, by name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Plant = Callable[[contextlib.ExitStack], None]


class NoSuchPlant(Exception):
    """There is no planted bug of this name."""


class NoSuchSeam(Exception):
    """The code has changed: what was to be replaced isn't there any more."""


@contextlib.contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    if not hasattr(owner, name):
        raise NoSuchSeam(f"{owner} has no {name}")
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def planted(plants: Mapping[str, Plant], name: str | None) -> Iterator[None]:
    if name is not None and name not in plants:
        raise NoSuchPlant(f"no planted bug is called {name!r}: choose from {', '.join(plants)}")
    with contextlib.ExitStack() as stack:
        if name is not None:
            plants[name](stack)
        yield
