"""Addresses and options as people write them."""

import pytest

from sapwood.client.config import ClientConfig, parse_bootstrap


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("localhost", [("localhost", 9092)]),
        ("a:1,b:2", [("a", 1), ("b", 2)]),
        (" a:1 , , b ", [("a", 1), ("b", 9092)]),
        ("[::1]:9", [("::1", 9)]),
        ("[::1]", [("::1", 9092)]),
        (["a:1", "b:2"], [("a", 1), ("b", 2)]),
    ],
)
def test_addresses_are_read(text: str | list[str], addresses: list[tuple[str, int]]) -> None:
    assert parse_bootstrap(text) == addresses


@pytest.mark.parametrize("text", ["a:", "a:b", ":9092", "a:0", "a:65536", "a:-1", "a:١"])
def test_what_is_no_address_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="isn't an address"):
        parse_bootstrap(text)


def test_an_empty_list_of_brokers_is_refused() -> None:
    with pytest.raises(ValueError, match="names no broker"):
        ClientConfig(bootstrap=[])


def test_idempotence_follows_acks_and_contradictions_are_refused() -> None:
    somewhere = [("a", 1)]
    assert ClientConfig(bootstrap=somewhere).is_idempotent
    assert not ClientConfig(bootstrap=somewhere, acks=1).is_idempotent
    with pytest.raises(ValueError, match="acks=-1"):
        ClientConfig(bootstrap=somewhere, acks=1, idempotent=True)


def test_pauses_double_up_to_a_bound() -> None:
    config = ClientConfig(bootstrap=[("a", 1)], backoff_ms=50, backoff_max_ms=1000)
    assert [config.pause_ms(failures) for failures in (0, 1, 2, 10, 10_000)] == [
        50, 100, 200, 1000, 1000,
    ]  # fmt: skip
