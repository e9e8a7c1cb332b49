"""Administration: topics and configurations, asked at the controller."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from sapwood.client.calls import AnyNode, Call, Controller, Node, Router, Target
from sapwood.client.config import ClientConfig
from sapwood.client.effects import Ticket
from sapwood.client.errors import error_for
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError

T = TypeVar("T")

_NO_ID = bytes(16)
_SET, _DELETE = 0, 1


@dataclass(frozen=True, slots=True)
class NewTopic:
    name: str
    partitions: int = -1  # the broker's default
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)


class ResourceKind(enum.IntEnum):
    TOPIC = 2
    BROKER = 4


class ConfigSource(enum.IntEnum):
    UNKNOWN = 0
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


class ConfigEntry(NamedTuple):
    name: str
    value: str | None
    source: int
    is_read_only: bool
    is_sensitive: bool


class Admin:
    def __init__(self, config: ClientConfig, router: Router) -> None:
        self._config = config
        self._router = router

    def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool, now_ms: float
    ) -> Ticket[None]:
        message = Struct(
            topics=[
                Struct(
                    name=topic.name,
                    num_partitions=topic.partitions,
                    replication_factor=topic.replication_factor,
                    assignments=[],
                    configs=[Struct(name=k, value=v) for k, v in topic.configs.items()],
                )
                for topic in topics
            ],
            timeout=self._config.request_timeout_ms,
            validate_only=validate_only,
        )
        already = ErrorCode.TOPIC_ALREADY_EXISTS
        return self._change_topics(Api.CREATE_TOPICS, message, "topics", already, now_ms)

    def delete_topics(self, names: Iterable[str], *, now_ms: float) -> Ticket[None]:
        names = list(names)
        message = Struct(
            topics=[Struct(name=name, topic_id=_NO_ID) for name in names],
            topic_names=names,
            timeout=self._config.request_timeout_ms,
        )
        already = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return self._change_topics(Api.DELETE_TOPICS, message, "responses", already, now_ms)

    def create_partitions(
        self, totals: Mapping[str, int], *, validate_only: bool, now_ms: float
    ) -> Ticket[None]:
        message = Struct(
            topics=[
                Struct(name=name, count=count, assignments=None) for name, count in totals.items()
            ],
            timeout=self._config.request_timeout_ms,
            validate_only=validate_only,
        )
        return self._change_topics(Api.CREATE_PARTITIONS, message, "results", None, now_ms)

    def describe_configs(
        self, kind: ResourceKind, name: str, *, now_ms: float
    ) -> Ticket[dict[str, ConfigEntry]]:
        message = Struct(
            resources=[Struct(resource_type=kind, resource_name=name, configuration_keys=None)],
            include_synonyms=False,
            include_documentation=False,
        )
        target = _home_of(kind, name, AnyNode())
        return self._call(Api.DESCRIBE_CONFIGS, message, target, _read_configs, now_ms)

    def alter_configs(
        self, kind: ResourceKind, name: str, changes: Mapping[str, str | None], *, now_ms: float
    ) -> Ticket[None]:
        """None as a value puts the default back."""
        message = Struct(
            resources=[
                Struct(
                    resource_type=kind,
                    resource_name=name,
                    configs=[
                        Struct(
                            name=key,
                            config_operation=_DELETE if value is None else _SET,
                            value=value,
                        )
                        for key, value in changes.items()
                    ],
                )
            ],
            validate_only=False,
        )
        return self._call(
            Api.INCREMENTAL_ALTER_CONFIGS,
            message,
            _home_of(kind, name, Controller()),
            lambda answer: _raise_first(answer.responses, _resource),
            now_ms,
        )

    def _change_topics(
        self, api: Api, message: Struct, results: str, already: ErrorCode | None, now_ms: float
    ) -> Ticket[None]:
        """Of a call that is made again, `already` says that an earlier try was carried out.

        Its answer was lost with a connection or a controller, or came for some topics only.
        """

        def read(answer: Struct) -> None:
            items = getattr(answer, results)
            if call.attempts:
                items = [each for each in items if each.error_code != already]
            _raise_first(items, lambda each: f"topic {each.name}")

        ticket: Ticket[None] = Ticket()
        deadline_ms = now_ms + self._config.api_timeout_ms
        call = Call(api, message, Controller(), read, ticket, now_ms, deadline_ms)
        self._router.submit(call)
        return ticket

    def _call(
        self,
        api: Api,
        message: Struct,
        target: Target,
        read: Callable[[Struct], T],
        now_ms: float,
    ) -> Ticket[T]:
        ticket: Ticket[T] = Ticket()
        deadline_ms = now_ms + self._config.api_timeout_ms
        self._router.submit(Call(api, message, target, read, ticket, now_ms, deadline_ms))
        return ticket


def _home_of(kind: ResourceKind, name: str, otherwise: Target) -> Target:
    """A broker's own configuration is known to that broker only."""
    if kind is ResourceKind.BROKER and name:
        if not name.isdigit():
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"broker {name}: use the broker's number")
        return Node(int(name))
    return otherwise


def _resource(item: Struct) -> str:
    return f"{ResourceKind(item.resource_type).name.lower()} {item.resource_name}"


def _raise_first(items: Iterable[Struct], subject: Callable[[Struct], str]) -> None:
    for item in items:
        if item.error_code:
            said = getattr(item, "error_message", None)
            raise error_for(item.error_code, subject(item), said)


def _read_configs(answer: Struct) -> dict[str, ConfigEntry]:
    _raise_first(answer.results, _resource)
    return {
        entry.name: ConfigEntry(
            entry.name,
            entry.value,
            getattr(entry, "config_source", ConfigSource.UNKNOWN),
            entry.read_only,
            entry.is_sensitive,
        )
        for result in answer.results
        for entry in result.configs
    }
