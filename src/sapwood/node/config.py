"""A node's settings: defaults, then a TOML file, then SAPWOOD_* variables, then flags."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal

import msgspec

from sapwood.metadata.configs import BROKER_CONFIGS, TOPIC_CONFIGS
from sapwood.server.types import Limits, Listener
from sapwood.wire.errors import KafkaError

DEFAULT_LISTENER = "kafka"
PREFIX = "SAPWOOD_"
TABLES = ("listeners", "advertised", "limits", "configs", "peer_routes")
# SAPWOOD_BOOTSTRAP tells clients where the cluster is. Founding one is an explicit act, for which
# a variable that outlives its purpose is no place.
NOT_FROM_ENVIRONMENT = ("bootstrap",)

# Kafka's names for what a node has its own settings for.
SYNONYMS = {
    "auto.create.topics.enable": "auto_create_topics",
    "broker.id": "node_id",
    "broker.rack": "rack",
    "log.dirs": "data_dir",
    "log.flush": "flush",
    "node.id": "node_id",
    "num.partitions": "num_partitions",
}
# Kafka configs that follow from settings, or from the cluster, and are shown only.
SHOWN_ONLY = SYNONYMS.keys() | {"advertised.listeners", "default.replication.factor"}


class ConfigError(Exception):
    """A setting that can't be used; says which, and what would be right."""


class NodeConfig(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    node_id: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """None: 0 for a founder, whatever the cluster gives to one who joins."""
    data_dir: Annotated[str, msgspec.Meta(min_length=1)]
    listeners: dict[str, str] = msgspec.field(
        default_factory=lambda: {DEFAULT_LISTENER: "127.0.0.1:9092"}
    )
    """Name → host:port. Port 0 takes a free one."""
    advertised: dict[str, str] = {}
    """Name → the host:port that clients of that listener are told, if it is another one."""
    bootstrap: bool = False
    """Found a cluster, unless the data directory belongs to one already."""
    join: list[str] = []
    """host:port of any nodes of the cluster to join; later on, hints where it may be found."""
    edge: bool = False
    """Hold no replica: relay what is above to whoever is below."""
    parent: str | None = None
    """host:port of whom an edge would like to hang from; else it is one of `join`."""
    outbox: bool = False
    """Whether an edge that can't reach the cluster accepts what asks for one acknowledgement, keeps
    it on its own disk, and delivers it later."""
    outbox_bytes: Annotated[int, msgspec.Meta(ge=1 << 20)] = 256 << 20
    """How much that may be at most."""
    secret_file: str | None = None
    """Where the cluster's secret lies, if not in the data directory."""
    discoverable: bool = True
    """Whether nodes that this user starts on this host find the cluster through this one."""
    rack: str | None = None
    peer_routes: dict[int, str] = {}
    """Node → host:port to reach it at, in place of the address that it advertises."""
    link_timeout_ms: Annotated[int, msgspec.Meta(ge=1)] = 1000
    """A node that isn't heard of for so long is held to be gone."""
    heartbeat_ms: Annotated[int, msgspec.Meta(ge=1)] = 150
    auto_create_topics: bool = True
    num_partitions: Annotated[int, msgspec.Meta(ge=-1)] = -1
    """Of a topic made without a count; -1: one for every core node."""
    flush: Literal["sync", "os"] = "sync"
    """What an acknowledgement means unless the topic says otherwise: synced, or only written."""
    configs: dict[str, str] = {}
    """Kafka's broker configs, such as log.retention.ms."""
    limits: Limits = Limits()
    clock_offset_ms: int = 0
    """How far its clock is off, for tests: no host's clock can be set for one process."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["console", "json"] = "console"
    stop_grace_s: Annotated[float, msgspec.Meta(ge=0)] = 5.0

    def server_listeners(self) -> list[Listener]:
        found = []
        for name, address in self.listeners.items():
            host, port = parse_address(address)
            advertised_host, advertised_port = (
                parse_address(self.advertised[name]) if name in self.advertised else (None, None)
            )
            found.append(Listener(name, host, port, advertised_host, advertised_port))
        return found

    def broker_configs(self) -> dict[str, str]:
        flush = {} if self.flush == "sync" else {"log.flush": self.flush}
        return {**self.configs, **flush}


def load(
    path: str | None = None,
    *,
    node_id: int | None = None,
    data_dir: str | None = None,
    listen: Iterable[str] = (),
    advertise: Iterable[str] = (),
    bootstrap: bool | None = None,
    join: Iterable[str] = (),
    edge: bool | None = None,
    parent: str | None = None,
    outbox: bool | None = None,
    secret_file: str | None = None,
    rack: str | None = None,
    auto_create_topics: bool | None = None,
    log_level: str | None = None,
    log_format: str | None = None,
    settings: Iterable[str] = (),
    environment: Mapping[str, str] = os.environ,
) -> NodeConfig:
    """All layers together, checked. Named arguments and `settings` (key=value) are the flags."""
    raw: dict[str, Any] = _read(path) if path else {}
    _add_environment(raw, environment)
    flags = {
        "node_id": node_id,
        "data_dir": data_dir,
        "listeners": _named(listen) or None,
        "advertised": _named(advertise) or None,
        "bootstrap": bootstrap,
        "join": list(join) or None,
        "edge": edge,
        "parent": parent,
        "outbox": outbox,
        "secret_file": secret_file,
        "rack": rack,
        "auto_create_topics": auto_create_topics,
        "log_level": log_level,
        "log_format": log_format,
    }
    raw.update((name, value) for name, value in flags.items() if value is not None)
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(f"{setting!r} is not a setting: give KEY=VALUE")
        _set(raw, key.strip(), value.strip())
    return _checked(raw)


def _read(path: str) -> dict[str, Any]:
    import tomllib  # most nodes start without a file

    try:
        with open(path, "rb") as file:
            raw = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"can't read {path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    configs = raw.get("configs")
    if isinstance(configs, dict):
        raw["configs"] = {key: _text(value) for key, value in _flattened(configs)}
    return raw


def _flattened(table: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """TOML reads the unquoted key log.retention.ms as three nested tables."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _add_environment(raw: dict[str, Any], environment: Mapping[str, str]) -> None:
    """SAPWOOD_NODE_ID, SAPWOOD_LIMITS_MAX_CONNECTIONS, SAPWOOD_CONFIGS_LOG_RETENTION_MS, …"""
    for variable, value in sorted(environment.items()):
        if not variable.startswith(PREFIX):
            continue
        name = variable.removeprefix(PREFIX).lower()
        table, _, key = name.partition("_")
        if name in NOT_FROM_ENVIRONMENT:
            continue
        if name in ("listeners", "advertised", "peer_routes"):
            raw[name] = _named(value.split(","))
        elif name == "join":
            raw[name] = _listed(value)
        elif name in NodeConfig.__struct_fields__ and name not in TABLES:
            raw[name] = value
        elif table == "limits" and key:
            _set(raw, f"limits.{key}", value)
        elif table == "configs" and key:
            _set(raw, key.replace("_", "."), value)


def _named(addresses: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in addresses:
        name, equals, address = text.strip().rpartition("=")
        name = name if equals else DEFAULT_LISTENER
        if name in found:
            raise ConfigError(f"two addresses for the listener {name!r}: name them, NAME={address}")
        found[name] = address
    return found


def _listed(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _set(raw: dict[str, Any], key: str, value: str) -> None:
    """One setting by its name, by a dotted path into a table, or by Kafka's name."""
    table, dot, rest = key.partition(".")
    key = SYNONYMS.get(key, key)
    if key in NodeConfig.__struct_fields__ and key not in TABLES:
        raw[key] = _listed(value) if key == "join" else value
    elif dot and table in TABLES:
        raw[table] = {**raw.get(table, {}), rest: value}
    else:
        raw["configs"] = {**raw.get("configs", {}), key: value}


def _checked(raw: dict[str, Any]) -> NodeConfig:
    limits = raw.get("limits", {})
    known = {field.name for field in fields(Limits)}
    if isinstance(limits, dict) and (unknown := limits.keys() - known):
        raise ConfigError(
            f"unknown limit {sorted(unknown)[0]!r}: one of {', '.join(sorted(known))}"
        )
    if "data_dir" not in raw:
        raise ConfigError("no data directory: give --dir, SAPWOOD_DATA_DIR or data_dir")
    if isinstance(raw.get("configs"), dict):
        raw["configs"] = dict(_kafka_config(*item) for item in raw["configs"].items())
    try:
        config = msgspec.convert(raw, NodeConfig, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"bad setting: {error}") from error
    if config.num_partitions == 0:
        raise ConfigError("num_partitions is 0: give -1 (one for every core node) or 1 and more")
    routes = config.peer_routes.values()
    for address in (*config.listeners.values(), *config.advertised.values(), *routes):
        parse_address(address)
    for address in (*config.join, *([config.parent] if config.parent else [])):
        if not all(parse_address(address)):
            raise ConfigError(f"can't join {address!r}: give the HOST:PORT of a running node")
    if config.edge and config.bootstrap:
        raise ConfigError("an edge holds nothing, so it can't found a cluster: give --join")
    if config.parent and not config.edge:
        raise ConfigError("only an edge has a parent: give --edge, too")
    if config.outbox and not config.edge:
        raise ConfigError("only an edge has an outbox: give --edge, too")
    if config.bootstrap and config.join:
        raise ConfigError("a node either founds a cluster (bootstrap) or joins one (join)")
    if config.heartbeat_ms >= config.link_timeout_ms:
        raise ConfigError(
            f"heartbeat_ms ({config.heartbeat_ms}) must be below "
            f"link_timeout_ms ({config.link_timeout_ms})"
        )
    if not config.listeners:
        raise ConfigError("no listener: give --listen HOST:PORT")
    if unknown := config.advertised.keys() - config.listeners.keys():
        raise ConfigError(f"advertised address for {sorted(unknown)[0]!r}, which is no listener")
    return config


def _kafka_config(key: str, value: str) -> tuple[str, str]:
    """A broker config, also by the name of the topic config that it is the default of."""
    config = BROKER_CONFIGS.get(key)
    if config is None and (topic := TOPIC_CONFIGS.get(key)) and topic.broker_name:
        config = BROKER_CONFIGS[topic.broker_name]
    if config is None:
        raise ConfigError(f"unknown setting {key!r}")
    if config.read_only and config.name in SHOWN_ONLY:
        name = SYNONYMS.get(config.name)
        advice = f": set {name}" if name else ""
        raise ConfigError(f"{config.name} can't be set as a Kafka config{advice}")
    try:
        config.check(value)
    except KafkaError as error:
        raise ConfigError(error.message) from error
    return config.name, value


def parse_address(text: str) -> tuple[str, int]:
    """host:port, [v6 address]:port, :port."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"{text!r} is not an address: write IPv6 as [{host}]:{port}")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ConfigError(f"{text!r} is not an address: give HOST:PORT")
    return host, int(port)
