"""Which override of a config counts."""

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


def test_every_default_is_allowed_by_its_own_rule() -> None:
    for config in (*TOPIC_CONFIGS.values(), *BROKER_CONFIGS.values()):
        if config.default:
            config.check(config.default)
