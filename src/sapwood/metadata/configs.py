"""Every config that Sapwood knows, with its type, default, bounds and meaning.

A topic's effective value is its own override, else the brokers' override of the matching
broker config, else the default. Values are kept as strings, checked and brought into one form
here, so that whoever reads an effective value may parse it without looking.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from sapwood.wire.errors import ErrorCode, KafkaError

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
MAX_VALUE_BYTES = 2**15 - 1
"""A value that came in by a newer version must be told by an older one, too."""


# Python refuses to read whole numbers of thousands of digits, and with another error.
_WHOLE = re.compile(r"[+-]?[0-9]{1,100}", re.ASCII)
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)


class ConfigType(IntEnum):
    """Kafka's numbers for the types that DescribeConfigs reports."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class ConfigSource(IntEnum):
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


@dataclass(frozen=True, slots=True)
class Config:
    name: str
    type: ConfigType
    default: str
    documentation: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    broker_name: str = ""
    """The broker config that gives this topic config its default."""
    read_only: bool = False

    def check(self, value: str) -> str:
        """The value in the form to keep. INVALID_CONFIG, saying what is right, if it is wrong."""
        if len(value.encode()) > MAX_VALUE_BYTES:
            raise self._refused(value, f"at most {MAX_VALUE_BYTES} bytes")
        text = value.strip()
        if self.type is ConfigType.BOOLEAN:
            text = text.lower()
            if text not in ("true", "false"):
                raise self._refused(value, "true or false")
            return text
        if self.type in (ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE):
            return self._check_number(text)
        items = [text]
        if self.type is ConfigType.LIST:
            items = list(dict.fromkeys(item.strip() for item in text.split(","))) if text else []
        if self.choices and not all(item in self.choices for item in items):
            raise self._refused(value, "one of " + ", ".join(self.choices))
        return ",".join(items)

    def _check_number(self, value: str) -> str:
        form = _DECIMAL if self.type is ConfigType.DOUBLE else _WHOLE
        if not form.fullmatch(value):
            raise self._refused(value, "a number")
        number = float(value) if self.type is ConfigType.DOUBLE else int(value)
        low = self.minimum if self.minimum is not None else -LONG_MAX - 1
        largest = INT_MAX if self.type is ConfigType.INT else LONG_MAX
        high = self.maximum if self.maximum is not None else largest
        if not low <= number <= high:
            raise self._refused(value, f"a number from {low:g} to {high:g}")
        return str(number)

    def _refused(self, value: str, wanted: str) -> KafkaError:
        return KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Invalid value {value[:100]!r} for {self.name}: give {wanted}",
        )


_T = ConfigType

_TOPIC = (
    Config(
        "cleanup.policy", _T.LIST, "delete",
        "What happens to old data: delete drops it, compact keeps the newest record per key.",
        choices=("delete", "compact"), broker_name="log.cleanup.policy",
    ),
    Config(
        "compression.gzip.level", _T.INT, "-1",
        "Accepted for compatibility; gzip works at its usual level.",
        minimum=-1, maximum=9, broker_name="compression.gzip.level",
    ),
    Config(
        "compression.lz4.level", _T.INT, "9",
        "Accepted for compatibility; lz4 works at its usual level.",
        minimum=1, maximum=17, broker_name="compression.lz4.level",
    ),
    Config(
        "compression.type", _T.STRING, "producer",
        "How batches are stored; producer keeps what was sent.",
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        broker_name="compression.type",
    ),
    Config(
        "compression.zstd.level", _T.INT, "3",
        "Accepted for compatibility; zstd works at its usual level.",
        minimum=-131072, maximum=22, broker_name="compression.zstd.level",
    ),
    Config(
        "delete.retention.ms", _T.LONG, "86400000",
        "How long a compacted topic keeps tombstones.",
        minimum=0, broker_name="log.cleaner.delete.retention.ms",
    ),
    Config(
        "file.delete.delay.ms", _T.LONG, "0",
        "Accepted for compatibility; files are removed at once.",
        minimum=0, broker_name="log.segment.delete.delay.ms",
    ),
    Config(
        "flush", _T.STRING, "sync",
        "sync: acknowledged means synced to disk. os: it means written; a power cut may lose it.",
        choices=("sync", "os"), broker_name="log.flush",
    ),
    Config(
        "flush.messages", _T.LONG, str(LONG_MAX),
        "Accepted for compatibility; see flush.",
        minimum=1, broker_name="log.flush.interval.messages",
    ),
    Config(
        "flush.ms", _T.LONG, str(LONG_MAX),
        "Accepted for compatibility; see flush.",
        minimum=0, broker_name="log.flush.interval.ms",
    ),
    Config(
        "follower.replication.throttled.replicas", _T.LIST, "",
        "Accepted for compatibility; replication is not throttled.",
    ),
    Config(
        "index.interval.bytes", _T.INT, "4096",
        "How many bytes of log lie between two rows of the index.",
        minimum=0, broker_name="log.index.interval.bytes",
    ),
    Config(
        "leader.replication.throttled.replicas", _T.LIST, "",
        "Accepted for compatibility; replication is not throttled.",
    ),
    Config(
        "max.compaction.lag.ms", _T.LONG, str(LONG_MAX),
        "The longest time that a record stays uncompacted.",
        minimum=1, broker_name="log.cleaner.max.compaction.lag.ms",
    ),
    Config(
        "max.message.bytes", _T.INT, "1048588",
        "The largest record batch that is accepted.",
        minimum=0, broker_name="message.max.bytes",
    ),
    Config(
        "message.timestamp.after.max.ms", _T.LONG, "3600000",
        "How far in the future a record's timestamp may lie.",
        minimum=0, broker_name="log.message.timestamp.after.max.ms",
    ),
    Config(
        "message.timestamp.before.max.ms", _T.LONG, str(LONG_MAX),
        "How far in the past a record's timestamp may lie.",
        minimum=0, broker_name="log.message.timestamp.before.max.ms",
    ),
    Config(
        "message.timestamp.type", _T.STRING, "CreateTime",
        "Whose time records carry: the producer's or the broker's.",
        choices=("CreateTime", "LogAppendTime"), broker_name="log.message.timestamp.type",
    ),
    Config(
        "min.cleanable.dirty.ratio", _T.DOUBLE, "0.5",
        "The share of uncompacted data that starts a compaction.",
        minimum=0, maximum=1, broker_name="log.cleaner.min.cleanable.ratio",
    ),
    Config(
        "min.compaction.lag.ms", _T.LONG, "0",
        "The shortest time that a record stays uncompacted.",
        minimum=0, broker_name="log.cleaner.min.compaction.lag.ms",
    ),
    Config(
        "min.insync.replicas", _T.INT, "1",
        "How many replicas hold a record before acks=all is answered; never below a majority.",
        minimum=1, broker_name="min.insync.replicas",
    ),
    Config(
        "preallocate", _T.BOOLEAN, "true",
        "Whether segments reserve room on disk ahead, so that a full disk fails at the write.",
        broker_name="log.preallocate",
    ),
    Config(
        "retention", _T.STRING, "time",
        "When records go: time keeps to retention.ms and retention.bytes; acked lets those go, "
        "too, that all durable subscribers have acknowledged, a few seconds later.",
        choices=("time", "acked"),
    ),
    Config(
        "retention.bytes", _T.LONG, "-1",
        "The size past which a partition's oldest segments go; -1: no limit.",
        minimum=-1, broker_name="log.retention.bytes",
    ),
    Config(
        "retention.ms", _T.LONG, "604800000",
        "The age past which segments go; -1: no limit.",
        minimum=-1, broker_name="log.retention.ms",
    ),
    Config(
        "subscription.hold.bytes", _T.LONG, "-1",
        "The size of a partition past which retention no longer waits for durable subscribers; "
        "-1: it always does.",
        minimum=-1,
    ),
    Config(
        "segment.bytes", _T.INT, "1073741824",
        "The size of a segment file.",
        minimum=1024, maximum=2**31 - 1, broker_name="log.segment.bytes",
    ),
    Config(
        "segment.index.bytes", _T.INT, "10485760",
        "Accepted for compatibility; indexes grow with their segment.",
        minimum=4, broker_name="log.index.size.max.bytes",
    ),
    Config(
        "segment.jitter.ms", _T.LONG, "0",
        "Accepted for compatibility; segments roll by their own age.",
        minimum=0, broker_name="log.roll.jitter.ms",
    ),
    Config(
        "segment.ms", _T.LONG, "604800000",
        "The age past which a segment is closed even if it isn't full.",
        minimum=1, broker_name="log.roll.ms",
    ),
    Config(
        "unclean.leader.election.enable", _T.BOOLEAN, "false",
        "Always false: a replica without the committed records never leads.",
        choices=("false",), broker_name="unclean.leader.election.enable",
    ),
)  # fmt: skip

TOPIC_CONFIGS: Mapping[str, Config] = {config.name: config for config in _TOPIC}

_BROKER_ONLY = (
    Config(
        "advertised.listeners", _T.LIST, "", "Where clients are told to find this node.",
        read_only=True,
    ),
    Config(
        "auto.create.topics.enable", _T.BOOLEAN, "true",
        "Whether a topic that is asked for and doesn't exist is made.", read_only=True,
    ),
    Config("broker.id", _T.INT, "0", "This node's id.", read_only=True),
    Config(
        "default.replication.factor", _T.INT, "-1",
        "Replicas of a topic made without a count; -1: up to three.", read_only=True,
    ),
    Config("log.dirs", _T.STRING, "", "Where this node keeps its data.", read_only=True),
    Config("node.id", _T.INT, "0", "This node's id.", read_only=True),
    Config(
        "num.partitions", _T.INT, "-1",
        "Partitions of a topic made without a count; -1: one for every core node.",
        read_only=True,
    ),
    Config(
        "group.consumer.heartbeat.interval.ms", _T.INT, "1000",
        "How often members of a group of the newer protocol are to be heard of.",
        minimum=1, read_only=True,
    ),
    Config(
        "group.consumer.max.size", _T.INT, "2000",
        "Members that a group of the newer protocol may have.",
        minimum=1, read_only=True,
    ),
    Config(
        "group.consumer.session.timeout.ms", _T.INT, "45000",
        "The silence after which a member of a group of the newer protocol is given up.",
        minimum=1, read_only=True,
    ),
    Config(
        "group.initial.rebalance.delay.ms", _T.INT, "100",
        "How long a new group waits for more members before it assigns anything.",
        minimum=0, read_only=True,
    ),
    Config(
        "group.max.session.timeout.ms", _T.INT, "1800000",
        "The longest silence that a member of a classic group may ask for.",
        minimum=1, read_only=True,
    ),
    Config(
        "group.max.size", _T.INT, "10000", "Members that a group may have.",
        minimum=1, read_only=True,
    ),
    Config(
        "group.min.session.timeout.ms", _T.INT, "1000",
        "The shortest silence after which a member of a classic group may be given up.",
        minimum=1, read_only=True,
    ),
    Config(
        "offset.metadata.max.bytes", _T.INT, "4096",
        "What a commit may say about itself, per partition.",
        minimum=0, maximum=32_000, read_only=True,
    ),
    Config(
        "offsets.retention.check.interval.ms", _T.LONG, "600000",
        "How often a coordinator looks for positions that are past their retention.",
        minimum=1, read_only=True,
    ),
    Config(
        "offsets.retention.minutes", _T.INT, "10080",
        "How long positions of a group without members are kept; those of subscriptions always.",
        minimum=1, read_only=True,
    ),
    Config(
        "offsets.topic.num.partitions", _T.INT, "16",
        "Into how many shards groups and their positions are divided, when that begins.",
        minimum=1, read_only=True,
    ),
    Config(
        "transaction.max.timeout.ms", _T.INT, "900000",
        "The longest time for which a producer may ask to keep a transaction open.",
        minimum=1, read_only=True,
    ),
    Config(
        "transaction.state.log.num.partitions", _T.INT, "16",
        "Into how many shards transactional ids are divided, when that begins.",
        minimum=1, read_only=True,
    ),
    Config(
        "transactional.id.expiration.ms", _T.INT, "604800000",
        "How long a transactional id is remembered that nobody uses.",
        minimum=1, read_only=True,
    ),
)  # fmt: skip

BROKER_CONFIGS: Mapping[str, Config] = {
    config.name: config
    for config in sorted(
        (
            *_BROKER_ONLY,
            *(
                Config(
                    topic.broker_name,
                    topic.type,
                    topic.default,
                    f"Default of {topic.name}. {topic.documentation}",
                    topic.minimum,
                    topic.maximum,
                    topic.choices,
                )
                for topic in _TOPIC
                if topic.broker_name
            ),
        ),
        key=lambda config: config.name,
    )
}


@dataclass(frozen=True, slots=True)
class Effective:
    """A config's value in force, and the chain that it was chosen from, nearest first."""

    config: Config
    value: str
    source: ConfigSource
    synonyms: tuple[tuple[str, str, ConfigSource], ...]


@dataclass(frozen=True, slots=True)
class BrokerOverrides:
    """What one node's operators set, from the nearest to the farthest."""

    node: Mapping[str, str]
    all_nodes: Mapping[str, str]
    static: Mapping[str, str]

    def chain(self, name: str) -> list[tuple[str, str, ConfigSource]]:
        layers = (
            (self.node, ConfigSource.DYNAMIC_BROKER),
            (self.all_nodes, ConfigSource.DYNAMIC_DEFAULT_BROKER),
            (self.static, ConfigSource.STATIC_BROKER),
        )
        return [(name, values[name], source) for values, source in layers if name in values]


def topic_config(name: str, topic: Mapping[str, str], brokers: BrokerOverrides) -> Effective:
    config = TOPIC_CONFIGS[name]
    own = [(name, topic[name], ConfigSource.TOPIC)] if name in topic else []
    return _effective(config, [*own, *brokers.chain(config.broker_name)])


def broker_config(name: str, brokers: BrokerOverrides) -> Effective:
    return _effective(BROKER_CONFIGS[name], brokers.chain(name))


def _effective(config: Config, chain: list[tuple[str, str, ConfigSource]]) -> Effective:
    default = (config.broker_name or config.name, config.default, ConfigSource.DEFAULT)
    chain = [*chain, default]
    return Effective(config, chain[0][1], chain[0][2], tuple(chain))
