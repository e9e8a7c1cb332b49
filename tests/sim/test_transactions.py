"""Transactions in the simulator: whole through faults, and bugs in them that must show."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from sim.invariants import Sent, Violation
from sim.plan import Plan
from sim.scenario import Transacting, kind_of, run_seed
from sim.transactions import Fate, Transaction, TransactionsAreWhole
from sim.world import World

PLAN = Plan(minutes=0.1, nodes=3, faults=("pause", "resets"))


def transacting(seeds: Iterable[int], plan: Plan) -> Iterator[int]:
    """Those whose clients write in transactions."""
    for seed in seeds:
        world = World(seed)
        if kind_of(world, plan) is Transacting:
            yield seed
        world.close()


def test_transactions_are_whole_through_faults() -> None:
    plan = replace(PLAN, faults=("crash", "cut links"))
    outcome = run_seed(next(transacting(range(1, 100), plan)), plan)
    assert outcome.failure == ""
    assert outcome.acknowledged > 0


@pytest.mark.parametrize("plant", ["end-txn-without-epoch-check", "last-stable-offset-ignored"])
def test_a_bug_of_transactions_is_caught(plant: str) -> None:
    plan = replace(PLAN, plant=plant)
    seeds = transacting(range(1, 100), plan)
    failed = next(it for it in (run_seed(seed, plan) for seed in seeds) if it.failure)
    assert failed.failure.startswith("TransactionsAreWhole: ")
    assert run_seed(failed.seed, PLAN).failure == ""


KEY = ("t", 0)


def judged(fate: Fate, *there: bytes) -> None:
    whole = TransactionsAreWhole()
    transaction = Transaction("app/1")
    whole.begun(transaction)
    for value in (b"one", b"two"):
        whole.written(transaction, Sent("app", 1, KEY, value))
    transaction.fate = fate
    whole.at_the_very_end((KEY, it) for it in there)


@pytest.mark.parametrize(
    ("fate", "there"),
    [
        (Fate.COMMITTED, (b"one", b"two")),
        (Fate.ABORTED, ()),
        (Fate.UNKNOWN, ()),
        (Fate.UNKNOWN, (b"one", b"two")),
    ],
)
def test_a_whole_transaction_passes(fate: Fate, there: tuple[bytes, ...]) -> None:
    judged(fate, *there)


@pytest.mark.parametrize(
    ("fate", "there"),
    [
        (Fate.COMMITTED, ()),
        (Fate.COMMITTED, (b"one",)),
        (Fate.ABORTED, (b"one",)),
        (Fate.ABORTED, (b"one", b"two")),
        (Fate.UNKNOWN, (b"two",)),
    ],
)
def test_half_a_transaction_or_the_wrong_one_is_a_violation(
    fate: Fate, there: tuple[bytes, ...]
) -> None:
    with pytest.raises(Violation, match="of its 2 records"):
        judged(fate, *there)


def test_a_reader_must_not_see_twice_nor_what_is_aborted_nor_what_is_gone_later() -> None:
    whole = TransactionsAreWhole()
    whole.read_committed("reader", KEY, b"one")
    with pytest.raises(Violation, match="twice"):
        whole.read_committed("reader", KEY, b"one")
    with pytest.raises(Violation, match="never committed"):
        whole.at_the_very_end([])
    transaction = Transaction("app/1", fate=Fate.ABORTED)
    whole.written(transaction, Sent("app", 1, KEY, b"two"))
    with pytest.raises(Violation, match="was aborted"):
        whole.read_committed("reader", KEY, b"two")
