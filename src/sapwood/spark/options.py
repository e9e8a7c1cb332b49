"""What users may ask of the source: Spark's names for it, read into one object, or refused."""

from __future__ import annotations

import difflib
import json
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from sapwood.client.cluster import TopicPartition
from sapwood.client.config import READ_COMMITTED, READ_UNCOMMITTED, parse_bootstrap
from sapwood.client.offsets import EARLIEST, LATEST

T = TypeVar("T")

# What the names of Spark's Kafka source are, apart from kafka.*.
NAMES = (
    "assign", "subscribe", "subscribePattern",
    "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp",
    "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay",
    "minPartitions", "maxRecordsPerPartition",
    "failOnDataLoss", "includeHeaders", "groupIdPrefix",
)  # fmt: skip
OWN_NAMES = ("appendTimes",)

# Kafka's names for the knobs of our client.
_CLIENT_NUMBERS = {
    "request.timeout.ms": "request_timeout_ms",
    "default.api.timeout.ms": "api_timeout_ms",
    "fetch.max.bytes": "fetch_max_bytes",
    "fetch.max.wait.ms": "fetch_max_wait_ms",
    "fetch.min.bytes": "fetch_min_bytes",
    "max.partition.fetch.bytes": "fetch_partition_bytes",
    "metadata.max.age.ms": "metadata_max_age_ms",
}
_CLIENT_WORDS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "isolation.level": (
        "isolation_level",
        {"read_committed": READ_COMMITTED, "read_uncommitted": READ_UNCOMMITTED},
    )
}
_SETTLED_BY_SPARK = dict.fromkeys(
    (
        "auto.offset.reset", "enable.auto.commit", "interceptor.classes", "key.deserializer",
        "value.deserializer",
    ),
    "Spark keeps positions and gives bytes",
)  # fmt: skip
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_FETCH_PARTITION_BYTES = 8 * 1024 * 1024


class WrongOption(ValueError):
    """An option that is missing, unknown or not understood; says which, in a line."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Where reading starts or ends: at an offset, or at the first record of some time."""

    kind: Literal["offset", "time"]
    everywhere: int | None = None  # EARLIEST, LATEST, or milliseconds
    by_partition: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    bootstrap: str
    assigned: tuple[TopicPartition, ...] = ()
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    start: Bound
    end: Bound
    start_may_be_end: bool = False  # if no record is as young as the time to start at
    most_per_trigger: int | None = None
    least_per_trigger: int | None = None
    trigger_delay_ms: int = 900_000
    least_tasks: int | None = None
    most_per_task: int | None = None
    may_lose: bool = False
    may_vanish: bool = False  # a topic that is deleted is no loss
    with_headers: bool = False
    with_times: bool = False
    group: str | None = None
    client: Mapping[str, Any] = field(default_factory=dict)


def read_options(given: Mapping[str, str], *, streaming: bool) -> Options:
    options, kafka, bootstrap = sort_options(given, (*NAMES, *OWN_NAMES))
    reader = OptionReader(options)
    if streaming:
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            if name.lower() in options:
                raise WrongOption(f"{name} is for batch queries: a stream has no end")
    chosen = [
        name for name in ("assign", "subscribe", "subscribePattern") if name.lower() in options
    ]
    if len(chosen) != 1:
        said = " and ".join(chosen) or "none"
        raise WrongOption(
            f"exactly one of assign, subscribe and subscribePattern must be given, not {said}"
        )
    with_times = reader.get("appendTimes", read_flag, False)
    pattern = reader.get("subscribePattern", _pattern, None)
    if streaming and with_times and chosen != ["subscribe"]:
        # Records of a topic that matches later may be older than what was read before.
        raise WrongOption("a stream with appendTimes is of topics that are named: use subscribe")
    return Options(
        bootstrap=bootstrap,
        assigned=reader.get("assign", _assignment, ()),
        topics=reader.get("subscribe", _topics, ()),
        pattern=pattern,
        start=reader.bound("starting", LATEST if streaming else EARLIEST, streaming),
        end=reader.bound("ending", LATEST, streaming),
        start_may_be_end=reader.get("startingOffsetsByTimestampStrategy", _strategy, False),
        most_per_trigger=reader.get("maxOffsetsPerTrigger", _positive, None),
        least_per_trigger=reader.get("minOffsetsPerTrigger", _positive, None),
        trigger_delay_ms=reader.get("maxTriggerDelay", _duration_ms, 900_000),
        least_tasks=reader.get("minPartitions", _positive, None),
        most_per_task=reader.get("maxRecordsPerPartition", _positive, None),
        may_lose=not reader.get("failOnDataLoss", read_flag, True),
        may_vanish=streaming and pattern is not None,
        with_headers=reader.get("includeHeaders", read_flag, False),
        with_times=with_times,
        group=kafka.pop("group.id", None),
        client=_client_options(kafka),
    )


class OptionReader:
    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    def get(self, name: str, read: Callable[[str], T], default: T) -> T:
        text = self._options.get(name.lower())
        if text is None:
            return default
        try:
            return read(text)
        except (ValueError, TypeError, AttributeError) as error:
            raise WrongOption(f"{name}={text!r}: {error}") from None

    def bound(self, which: str, default: int, streaming: bool) -> Bound:
        """Spark's order: one time for all, then times by partition, then offsets."""
        found = self.get(f"{which}Timestamp", _time, None)
        found = found or self.get(f"{which}OffsetsByTimestamp", _times, None)
        if found is not None:
            return found
        is_start = which == "starting"

        def read(text: str) -> Bound:
            words = {"earliest": EARLIEST, "latest": LATEST}
            forbidden = None if streaming else LATEST if is_start else EARLIEST
            bound = Bound("offset", words[text]) if text in words else _offsets(text)
            if forbidden in {bound.everywhere, *bound.by_partition.values()}:
                word = "latest (-1)" if is_start else "earliest (-2)"
                raise ValueError(f"a batch query can't {which[:-3]} at {word}")
            return bound

        return self.get(f"{which}Offsets", read, Bound("offset", default))


def _client_options(kafka: Mapping[str, str]) -> dict[str, Any]:
    # Committed records only, unless told otherwise: what a transaction left behind isn't data.
    return {
        "isolation_level": READ_COMMITTED,
        "fetch_partition_bytes": _FETCH_PARTITION_BYTES,
        **read_client_options(kafka, _CLIENT_NUMBERS, _CLIENT_WORDS, _SETTLED_BY_SPARK),
    }


def sort_options(
    given: Mapping[str, str], names: Sequence[str]
) -> tuple[dict[str, str], dict[str, str], str]:
    """Those with these names, in lower case; those for Kafka's client; the cluster's address."""
    options = {name.lower(): str(value) for name, value in given.items()}
    known = {name.lower(): name for name in names}
    kafka = {name[6:]: options.pop(name) for name in list(options) if name.startswith("kafka.")}
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            advice = f"did you mean {known[near[0]]}?" if near else f"there are {', '.join(names)}"
            raise WrongOption(f"there is no option {name!r}: {advice}")
    bootstrap = kafka.pop("bootstrap.servers", os.environ.get("SAPWOOD_BOOTSTRAP", ""))
    try:
        if not parse_bootstrap(bootstrap):
            raise ValueError("it names no broker")
    except ValueError as error:
        raise WrongOption(
            f"kafka.bootstrap.servers: {error}; give host:port[,host:port…] of the cluster"
        ) from None
    return options, kafka, bootstrap


def read_client_options(
    kafka: Mapping[str, str],
    numbers: Mapping[str, str],
    words: Mapping[str, tuple[str, Mapping[str, Any]]],
    settled: Mapping[str, str],
) -> dict[str, Any]:
    """Options of our client from Kafka's names for them, which are numbers or words.

    Those that are `settled` can't be set, for the reason that is given there.
    """
    client: dict[str, Any] = {"client_id": "sapwood-spark", "allow_auto_create": False}
    for name, text in kafka.items():
        if name in numbers:
            if not text.isdigit():
                raise WrongOption(f"kafka.{name}={text!r}: it must be a number")
            client[numbers[name]] = int(text)
            if name == "default.api.timeout.ms":
                client["bootstrap_timeout_ms"] = int(text)
        elif name == "client.id":
            client["client_id"] = text
        elif name in words:
            option, values = words[name]
            if text not in values:
                raise WrongOption(f"kafka.{name}={text!r}: it is {' or '.join(values)}")
            client[option] = values[text]
        elif name in settled:
            raise WrongOption(f"kafka.{name} can't be set: {settled[name]}")
        elif name.startswith(("sasl.", "ssl.")) or (
            name == "security.protocol" and text != "PLAINTEXT"
        ):
            raise WrongOption(f"kafka.{name}: this source speaks PLAINTEXT only so far")
        elif name != "security.protocol":
            logging.getLogger("sapwood.spark").warning("kafka.%s has no effect here", name)
    return client


def _topics(text: str) -> tuple[str, ...]:
    topics = tuple(name.strip() for name in text.split(",") if name.strip())
    if not topics:
        raise ValueError("it names no topic")
    return topics


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return text


def _assignment(text: str) -> tuple[TopicPartition, ...]:
    found = tuple(
        (topic, int(partition))
        for topic, partitions in _json(text, '{"topic": [0, 1]}').items()
        for partition in partitions
    )
    if not found:
        raise ValueError("it names no partition")
    return found


def _by_partition(text: str) -> dict[TopicPartition, int]:
    return {
        (topic, int(partition)): int(number)
        for topic, partitions in _json(text, '{"topic": {"0": 23, "1": -2}}').items()
        for partition, number in partitions.items()
    }


def _offsets(text: str) -> Bound:
    if not text.lstrip().startswith("{"):
        raise ValueError('it is earliest, latest or JSON such as {"topic": {"0": 23, "1": -2}}')
    found = _by_partition(text)
    if any(offset < EARLIEST for offset in found.values()):
        raise ValueError("offsets are 0 or more, -1 for latest or -2 for earliest")
    return Bound("offset", None, found)


def _time(text: str) -> Bound:
    return Bound("time", _not_negative(text))


def _times(text: str) -> Bound:
    return Bound("time", None, _by_partition(text))


def _json(text: str, example: str) -> Any:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"not JSON ({error}); write it as {example}") from None
    if not isinstance(found, dict):
        raise ValueError(f"write it as {example}")
    return found


def _strategy(text: str) -> bool:
    if text not in ("error", "latest"):
        raise ValueError("it is error or latest")
    return text == "latest"


def _not_negative(text: str) -> int:
    if not text.isdigit():
        raise ValueError("it must be a number of milliseconds since 1970")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise ValueError("it must be a positive number")
    return int(text)


def read_flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("it is true or false")
    return text.lower() == "true"


def _duration_ms(text: str) -> int:
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    unit = _UNITS_MS.get(found[2] or "ms") if found else None
    if found is None or unit is None:
        raise ValueError("it is a time such as 500ms, 30s or 15m")
    return int(found[1]) * unit
