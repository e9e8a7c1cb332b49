"""Settings: four layers, checked together, with errors that say what to do."""

from pathlib import Path

import pytest

from sapwood.node.config import ConfigError, NodeConfig, load, parse_address
from sapwood.server import Listener

NOTHING: dict[str, str] = {}


def from_file(tmp_path: Path, text: str, **flags: object) -> NodeConfig:
    path = tmp_path / "node.toml"
    path.write_text(text)
    return load(str(path), environment=NOTHING, **flags)  # type: ignore[arg-type]


def test_a_directory_is_all_that_must_be_given() -> None:
    config = load(data_dir="data", environment=NOTHING)
    assert config == NodeConfig(data_dir="data")
    assert config.server_listeners() == [Listener("kafka", "127.0.0.1", 9092)]
    assert config.broker_configs() == {}


def test_a_flag_wins_over_a_variable_and_a_variable_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text('node_id = 1\nnum_partitions = 1\nflush = "os"\ndata_dir = "file"\n')
    environment = {"SAPWOOD_NODE_ID": "2", "SAPWOOD_NUM_PARTITIONS": "2", "SAPWOOD_DIR": "x"}
    config = load(str(path), node_id=3, environment=environment)
    assert (config.node_id, config.num_partitions) == (3, 2)
    assert (config.flush, config.data_dir) == ("os", "file")


def test_a_file_sets_listeners_limits_and_kafka_configs(tmp_path: Path) -> None:
    config = from_file(
        tmp_path,
        """
        data_dir = "data"
        auto_create_topics = false
        [listeners]
        inside = "10.0.0.1:9092"
        outside = "[::]:9093"
        [advertised]
        outside = "broker.example.com:19093"
        [limits]
        max_connections = 17
        [configs]
        log.retention.ms = 60000
        "log.cleanup.policy" = "compact,delete"
        log.preallocate = false
        """,
    )
    assert config.server_listeners() == [
        Listener("inside", "10.0.0.1", 9092),
        Listener("outside", "::", 9093, "broker.example.com", 19093),
    ]
    assert config.limits.max_connections == 17
    assert config.limits.max_outstanding_requests == 64
    assert config.auto_create_topics is False
    assert config.broker_configs() == {
        "log.retention.ms": "60000",
        "log.cleanup.policy": "compact,delete",
        "log.preallocate": "false",
    }


def test_variables_reach_into_tables() -> None:
    config = load(
        environment={
            "SAPWOOD_DATA_DIR": "data",
            "SAPWOOD_LISTENERS": "inside=10.0.0.1:1, outside=0.0.0.0:2",
            "SAPWOOD_ADVERTISED": "outside=broker.example.com:2",
            "SAPWOOD_LIMITS_IDLE_TIMEOUT_S": "1.5",
            "SAPWOOD_CONFIGS_LOG_RETENTION_MS": "5",
            "SAPWOOD_AUTO_CREATE_TOPICS": "false",
        }
    )
    assert config.listeners == {"inside": "10.0.0.1:1", "outside": "0.0.0.0:2"}
    assert config.advertised == {"outside": "broker.example.com:2"}
    assert config.limits.idle_timeout_s == 1.5
    assert config.configs == {"log.retention.ms": "5"}
    assert config.auto_create_topics is False


def test_one_setting_may_be_given_by_our_name_by_kafkas_or_by_a_topics() -> None:
    config = load(
        data_dir="data",
        settings=[
            "num.partitions=4",
            "auto_create_topics=false",
            "flush=os",
            "limits.max_connections=9",
            "retention.ms=77",
            "log.segment.bytes=2048",
        ],
        environment=NOTHING,
    )
    assert (config.num_partitions, config.auto_create_topics) == (4, False)
    assert config.limits.max_connections == 9
    assert config.broker_configs() == {
        "log.retention.ms": "77",
        "log.segment.bytes": "2048",
        "log.flush": "os",
    }


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (["nonsense"], "KEY=VALUE"),
        (["no_such_thing=1"], "no_such_thing"),
        (["node_id=-1"], "node_id"),
        (["node_id=first"], "node_id"),
        (["num_partitions=0"], "num_partitions"),
        (["flush=never"], "flush"),
        (["limits.speed=9"], "speed"),
        (["limits.max_connections=many"], "max_connections"),
        (["log.retention.ms=long"], "log.retention.ms"),
        (["log.cleanup.policy=burn"], "log.cleanup.policy"),
        (["default.replication.factor=3"], "default.replication.factor"),
        (["listeners.kafka=nowhere"], "nowhere"),
        (["advertised.other=host:1"], "other"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(settings: list[str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load(data_dir="data", settings=settings, environment=NOTHING)


def test_what_a_file_gets_wrong_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="colour"):
        from_file(tmp_path, 'data_dir = "data"\ncolour = "green"\n')
    with pytest.raises(ConfigError, match="is not TOML"):
        from_file(tmp_path, "data_dir =")
    with pytest.raises(ConfigError, match=r"can't read .*missing\.toml"):
        load(str(tmp_path / "missing.toml"), environment=NOTHING)
    with pytest.raises(ConfigError, match="--dir"):
        from_file(tmp_path, "node_id = 1\n")


def test_two_addresses_for_one_listener_are_refused() -> None:
    with pytest.raises(ConfigError, match="two addresses"):
        load(data_dir="data", listen=[":1", ":2"], environment=NOTHING)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9092", ("127.0.0.1", 9092)),
        ("[::1]:9092", ("::1", 9092)),
        ("localhost:0", ("localhost", 0)),
        (":9092", ("", 9092)),
    ],
)
def test_addresses_are_read(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "host", "host:", "host:port", "host:65536", "::1:9092"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not an address"):
        parse_address(text)


def test_a_cluster_is_founded_or_joined_as_the_settings_say(tmp_path: Path) -> None:
    config = from_file(
        tmp_path,
        """
        data_dir = "data"
        join = ["10.0.0.1:9092", "[::1]:9093"]
        secret_file = "/etc/sapwood/secret"
        rack = "cellar"
        link_timeout_ms = 500
        heartbeat_ms = 50
        [peer_routes]
        1 = "127.0.0.1:7001"
        """,
    )
    assert config.join == ["10.0.0.1:9092", "[::1]:9093"]
    assert (config.secret_file, config.rack) == ("/etc/sapwood/secret", "cellar")
    assert (config.link_timeout_ms, config.heartbeat_ms) == (500, 50)
    assert config.peer_routes == {1: "127.0.0.1:7001"}
    assert load(data_dir="data", bootstrap=True, environment=NOTHING).bootstrap


def test_variables_say_what_to_join() -> None:
    config = load(
        data_dir="data",
        environment={
            "SAPWOOD_JOIN": "one:1, two:2",
            "SAPWOOD_SECRET_FILE": "/run/secret",
            "SAPWOOD_PEER_ROUTES": "1=127.0.0.1:1,2=127.0.0.1:2",
        },
    )
    assert config.join == ["one:1", "two:2"]
    assert config.secret_file == "/run/secret"
    assert config.peer_routes == {1: "127.0.0.1:1", 2: "127.0.0.1:2"}
    assert load(data_dir="d", settings=["join=a:1,b:2"], environment=NOTHING).join == ["a:1", "b:2"]


def test_the_variable_that_tells_clients_where_the_cluster_is_founds_none() -> None:
    assert not load(data_dir="data", environment={"SAPWOOD_BOOTSTRAP": "host:9092"}).bootstrap


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (["join=nowhere"], "nowhere"),
        (["join=host:0"], "host:0"),
        (["join=:9092"], ":9092"),
        (["join=host:1", "bootstrap=true"], "either"),
        (["peer_routes.one=host:1"], "peer_routes"),
        (["peer_routes.1=nowhere"], "nowhere"),
        (["heartbeat_ms=1000"], "heartbeat_ms"),
        (["heartbeat_ms=0"], "heartbeat_ms"),
    ],
)
def test_a_setting_of_the_cluster_that_cannot_be_used_is_named(
    settings: list[str], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load(data_dir="data", settings=settings, environment=NOTHING)


def test_only_an_edge_has_an_outbox() -> None:
    with pytest.raises(ConfigError, match="only an edge has an outbox"):
        load(data_dir="d", outbox=True, environment={})
    said = {"SAPWOOD_EDGE": "true", "SAPWOOD_OUTBOX": "true", "SAPWOOD_OUTBOX_BYTES": "2000000"}
    config = load(data_dir="d", join=["h:1"], environment=said)
    assert (config.edge, config.outbox, config.outbox_bytes) == (True, True, 2_000_000)
