"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources."""

from collections import Counter
from collections.abc import Callable

from sapwood.broker.refusal import refuse
from sapwood.broker.relaying import RelayedConnection
from sapwood.broker.state import BrokerState
from sapwood.metadata import controller
from sapwood.metadata.configs import (
    BROKER_CONFIGS,
    TOPIC_CONFIGS,
    ConfigType,
    Effective,
    broker_config,
    topic_config,
)
from sapwood.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, Image
from sapwood.server import Request
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError

SET, DELETE, APPEND, SUBTRACT = range(4)


def describe_configs(state: BrokerState, request: Request, message: Struct) -> Struct:
    results = []
    for resource in message.resources:
        result = Struct(
            error_code=0,
            error_message=None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=[],
        )
        try:
            name = resource.resource_name
            if isinstance(request.connection, RelayedConnection) and _is_an_edge(state, resource):
                name = str(state.config.node_id)  # an edge passes for the cluster: any node will do
            entries = _effective(state, resource.resource_type, name)
            keys = resource.configuration_keys
            result.configs = [
                _entry(entry, message)
                for entry in entries
                if keys is None or entry.config.name in keys
            ]
        except KafkaError as error:
            refuse(result, error)
        results.append(result)
    return Struct(results=results)


def _is_an_edge(state: BrokerState, resource: Struct) -> bool:
    name = resource.resource_name
    is_broker = resource.resource_type == BROKER_RESOURCE and name.isdecimal()
    return is_broker and int(name) not in state.image.nodes


def _effective(state: BrokerState, resource_type: int, name: str) -> list[Effective]:
    controller.check_resource(state.image, resource_type, name)
    if resource_type == TOPIC_RESOURCE:
        overrides = state.image.overrides(TOPIC_RESOURCE, name)
        brokers = state.broker_overrides(state.config.node_id)
        return [topic_config(key, overrides, brokers) for key in TOPIC_CONFIGS]
    brokers = state.broker_overrides(int(name) if name else -1)
    if not name:  # the defaults of all brokers: only what was set
        return [broker_config(key, brokers) for key in sorted(brokers.all_nodes)]
    return [broker_config(key, brokers) for key in BROKER_CONFIGS]


def _entry(entry: Effective, message: Struct) -> Struct:
    config = entry.config
    return Struct(
        name=config.name,
        value=entry.value,
        read_only=config.read_only,
        config_source=int(entry.source),
        is_sensitive=False,
        synonyms=[
            Struct(name=name, value=value, source=int(source))
            for name, value, source in (entry.synonyms if message.include_synonyms else ())
        ],
        config_type=int(config.type),
        documentation=(
            config.documentation if getattr(message, "include_documentation", False) else None
        ),
    )


def describe_entries(state: BrokerState, overrides: dict[str, str]) -> list[Struct]:
    """A new topic's configs, as CreateTopics tells them."""
    brokers = state.broker_overrides(state.config.node_id)
    entries = [topic_config(name, overrides, brokers) for name in TOPIC_CONFIGS]
    return [
        Struct(
            name=entry.config.name,
            value=entry.value,
            read_only=entry.config.read_only,
            config_source=int(entry.source),
            is_sensitive=False,
        )
        for entry in entries
    ]


async def alter_configs(state: BrokerState, request: Request, message: Struct) -> Struct:
    """Kafka's older way: what the request doesn't name goes back to its default."""

    def replaced(image: Image, resource: Struct) -> dict[str, str | None]:
        present = image.overrides(resource.resource_type, resource.resource_name)
        values: dict[str, str | None] = dict.fromkeys(present)
        for name, config in _each_once(resource.configs):
            if config.value is None:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"Config {name} has no value")
            values[name] = config.value
        return values

    return await _alter(state, message, replaced)


async def incremental_alter_configs(
    state: BrokerState, request: Request, message: Struct
) -> Struct:
    def changed(image: Image, resource: Struct) -> dict[str, str | None]:
        return {
            name: _operate(state, resource, config) for name, config in _each_once(resource.configs)
        }

    return await _alter(state, message, changed)


def _each_once(configs: list[Struct]) -> list[tuple[str, Struct]]:
    named = {config.name: config for config in configs}
    if len(named) < len(configs):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "A config is named more than once")
    return list(named.items())


def _operate(state: BrokerState, resource: Struct, config: Struct) -> str | None:
    operation, value = config.config_operation, config.value
    if operation == DELETE:
        return None
    if value is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Config {config.name} has no value")
    if operation == SET:
        return str(value)
    if operation not in (APPEND, SUBTRACT):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown config operation {operation}")
    effective = {
        entry.config.name: entry
        for entry in _effective(state, resource.resource_type, resource.resource_name)
    }
    entry = effective.get(config.name)
    if entry is None or entry.config.type is not ConfigType.LIST:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"{config.name} is not a list: set or delete it instead"
        )
    present = [item for item in entry.value.split(",") if item]
    items = value.split(",")
    if operation == APPEND:
        kept = present + [item for item in items if item not in present]
    else:
        kept = [item for item in present if item not in items]
    return ",".join(kept)


async def _alter(
    state: BrokerState, message: Struct, change: Callable[[Image, Struct], dict[str, str | None]]
) -> Struct:
    results = []
    times = Counter((it.resource_type, it.resource_name) for it in message.resources)
    async with state.store.changing() as image:
        for resource in message.resources:
            result = Struct(
                error_code=0,
                error_message=None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            try:
                if times[resource.resource_type, resource.resource_name] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "A resource is named twice")
                record = controller.change_configs(
                    image,
                    resource.resource_type,
                    resource.resource_name,
                    change(image, resource),
                )
                if not message.validate_only and record.values:
                    await state.store.commit([record])
            except KafkaError as error:
                refuse(result, error)
            results.append(result)
    return Struct(responses=results)


def list_config_resources(state: BrokerState, request: Request, message: Struct) -> Struct:
    # Version 0 asks for client metrics subscriptions, of which there are none.
    wanted = getattr(message, "resource_types", [16]) or [TOPIC_RESOURCE, BROKER_RESOURCE]
    named = []
    if TOPIC_RESOURCE in wanted:
        named += [(name, TOPIC_RESOURCE) for name in sorted(state.image.topics)]
    if BROKER_RESOURCE in wanted:
        named += [(str(node_id), BROKER_RESOURCE) for node_id in sorted(state.image.nodes)]
    return Struct(
        error_code=0,
        config_resources=[
            Struct(resource_name=name, resource_type=resource_type) for name, resource_type in named
        ],
    )
