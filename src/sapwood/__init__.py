"""Sapwood: a message broker for people who work in Python and Spark.

Importing this package imports nothing else; its names are loaded when they are first used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sapwood.client import AsyncClient, Client, Message, NotSubscribed, PositionLost
    from sapwood.cluster import Cluster

__all__ = [
    "AsyncClient",
    "Client",
    "Cluster",
    "Message",
    "NotSubscribed",
    "PositionLost",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name == "Cluster":
        from sapwood.cluster import Cluster

        return Cluster
    if name in __all__ and name != "__version__":
        from sapwood import client

        return getattr(client, name)
    if name == "__version__":
        from importlib.metadata import version

        return version("sapwood")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
