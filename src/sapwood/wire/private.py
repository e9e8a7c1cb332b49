"""Sapwood's own messages, as dataclasses in the style of kio's and coded by the same compiler."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from sapwood.wire.apis import Api


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatusRequest:
    __flexible__: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeListener:
    __flexible__: ClassVar[bool] = True
    name: str = field(metadata={"kafka_type": "string"})
    host: str = field(metadata={"kafka_type": "string"})
    port: int = field(metadata={"kafka_type": "int32"})


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMetric:
    __flexible__: ClassVar[bool] = True
    name: str = field(metadata={"kafka_type": "string"})
    value: float = field(metadata={"kafka_type": "float64"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflinePartition:
    __flexible__: ClassVar[bool] = True
    topic: str = field(metadata={"kafka_type": "string"})
    partition: int = field(metadata={"kafka_type": "int32"})
    reason: str = field(metadata={"kafka_type": "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatusResponse:
    __flexible__: ClassVar[bool] = True
    error_code: int = field(metadata={"kafka_type": "int16"}, default=0)
    error_message: str | None = field(metadata={"kafka_type": "string"}, default=None)
    node_id: int = field(metadata={"kafka_type": "int32"})
    kind: str = field(metadata={"kafka_type": "string"})
    pid: int = field(metadata={"kafka_type": "int64"})
    version: str = field(metadata={"kafka_type": "string"})
    listeners: tuple[NodeListener, ...]
    metrics: tuple[NodeMetric, ...]
    offline_partitions: tuple[OfflinePartition, ...]


MESSAGES: dict[tuple[int, int], tuple[Any, Any]] = {
    (Api.NODE_STATUS, 0): (NodeStatusRequest, NodeStatusResponse),
}
