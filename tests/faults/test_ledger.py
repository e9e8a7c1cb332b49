"""The checker must see what it is there to see: each planted fault, and only that."""

import random

import pytest

from tests.faults.ledger import Entry, judge

SENT = {"a": 100, "b": 100}
ACKNOWLEDGED = {"a": range(90), "b": range(100)}


def a_good_log(seed: int) -> list[Entry]:
    """Two producers interleaved by chance, each in its order; a's tail wasn't acknowledged."""
    chance = random.Random(seed)
    waiting = {"a": list(range(95)), "b": list(range(100))}
    log = []
    while any(waiting.values()):
        producer = chance.choice([name for name, numbers in waiting.items() if numbers])
        log.append((producer, waiting[producer].pop(0)))
    return log


@pytest.mark.parametrize("seed", range(20))
def test_a_good_log_is_clean(seed: int) -> None:
    assert judge(ACKNOWLEDGED, SENT, a_good_log(seed)).is_clean


@pytest.mark.parametrize("seed", range(20))
def test_one_lost_record_is_found(seed: int) -> None:
    log = a_good_log(seed)
    victim = random.Random(seed).choice([it for it in log if it[1] < 90])
    log.remove(victim)
    verdict = judge(ACKNOWLEDGED, SENT, log)
    assert (verdict.lost, verdict.duplicated, verdict.reordered) == ([victim], [], [])


@pytest.mark.parametrize("seed", range(20))
def test_a_record_that_was_never_acknowledged_may_be_missing(seed: int) -> None:
    log = a_good_log(seed)
    log.remove(("a", 94))
    assert judge(ACKNOWLEDGED, SENT, log).is_clean


@pytest.mark.parametrize("seed", range(20))
def test_one_doubled_record_is_found_wherever_its_twin_stands(seed: int) -> None:
    log = a_good_log(seed)
    chance = random.Random(seed)
    victim = chance.choice(log)
    log.insert(chance.randint(log.index(victim), len(log)), victim)
    verdict = judge(ACKNOWLEDGED, SENT, log)
    assert (verdict.lost, verdict.duplicated, verdict.reordered) == ([], [victim], [])


@pytest.mark.parametrize("seed", range(20))
def test_two_exchanged_records_are_found(seed: int) -> None:
    log = a_good_log(seed)
    number = random.Random(seed).randrange(94)
    first, second = log.index(("a", number)), log.index(("a", number + 1))
    log[first], log[second] = log[second], log[first]
    verdict = judge(ACKNOWLEDGED, SENT, log)
    assert verdict.reordered == [(("a", number + 1), ("a", number))]
    assert (verdict.lost, verdict.duplicated) == ([], [])


def test_a_record_that_nobody_sent_is_found() -> None:
    verdict = judge(ACKNOWLEDGED, SENT, [*a_good_log(1), ("a", 100), ("stranger", 0)])
    assert verdict.invented == [("a", 100), ("stranger", 0)]
