"""Which override of a config counts, and in what form it is kept."""

import pytest

from sapwood.metadata.configs import (
    BROKER_CONFIGS,
    TOPIC_CONFIGS,
    BrokerOverrides,
    ConfigSource,
    topic_config,
)


def test_the_nearest_override_counts_and_the_chain_is_told() -> None:
    layers = [
        ({"retention.ms": "1"}, {}, {}, {}),
        ({}, {"log.retention.ms": "2"}, {}, {}),
        ({}, {}, {"log.retention.ms": "3"}, {}),
        ({}, {}, {}, {"log.retention.ms": "4"}),
    ]
    sources = [
        ConfigSource.TOPIC,
        ConfigSource.DYNAMIC_BROKER,
        ConfigSource.DYNAMIC_DEFAULT_BROKER,
        ConfigSource.STATIC_BROKER,
        ConfigSource.DEFAULT,
    ]
    for first in range(5):
        topic: dict[str, str] = {}
        brokers: list[dict[str, str]] = [{}, {}, {}]
        for layer in layers[first:]:
            topic.update(layer[0])
            for known, given in zip(brokers, layer[1:], strict=True):
                known.update(given)
        effective = topic_config("retention.ms", topic, BrokerOverrides(*brokers))
        assert effective.source is sources[first]
        assert [source for _, _, source in effective.synonyms] == sources[first:]
        assert effective.value == (str(first + 1) if first < 4 else "604800000")


@pytest.mark.parametrize(
    ("name", "given", "kept"),
    [
        ("cleanup.policy", " compact, delete,compact", "compact,delete"),
        ("cleanup.policy", "", ""),
        ("compression.type", " gzip ", "gzip"),
        ("min.cleanable.dirty.ratio", ".75", "0.75"),
        ("preallocate", "TRUE", "true"),
        ("retention.ms", " +0030 ", "30"),
    ],
)
def test_a_value_is_kept_in_the_form_that_kafka_tells_it_in(
    name: str, given: str, kept: str
) -> None:
    assert TOPIC_CONFIGS[name].check(given) == kept


def test_every_default_is_allowed_by_its_own_rule() -> None:
    for config in (*TOPIC_CONFIGS.values(), *BROKER_CONFIGS.values()):
        if config.default:
            config.check(config.default)
