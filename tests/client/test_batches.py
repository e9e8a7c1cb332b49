"""One partition's queue against a naive broker that loses answers and refuses at random."""

from dataclasses import dataclass, field

from hypothesis import example, given, settings
from hypothesis import strategies as st

from sapwood.client.batches import Batch, Delivery, Identity, PartitionQueue, Stage

KEY = ("t", 0)
ME = Identity(7, 0)


@dataclass
class NaiveBroker:
    """Stores a batch if it is the next one of its producer's epoch, and says so; or says no."""

    stored: list[int] = field(default_factory=list)
    epoch: int = -1
    next_sequence: int = 0
    known: list[tuple[int, int]] = field(default_factory=list)

    def append(self, batch: Batch) -> str:
        assert batch.identity is not None
        epoch, sequence = batch.identity.epoch, batch.base_sequence
        numbers = [int(record[2] or b"") for record in batch.records]
        if epoch < self.epoch:
            return "fenced"
        if epoch > self.epoch:
            if sequence != 0:
                return "out of order"
            self.epoch, self.next_sequence, self.known = epoch, 0, []
        if (sequence, len(numbers)) in self.known[-5:]:
            return "ok"
        if sequence != self.next_sequence:
            return "out of order"
        self.known.append((sequence, len(numbers)))
        self.next_sequence += len(numbers)
        self.stored += numbers
        return "ok"


def batch_of(*numbers: int) -> Batch:
    batch = Batch(KEY, 0.0)
    for number in numbers:
        batch.add((0, None, b"%d" % number, ()), 10, Delivery())
    return batch


def values(batch: Batch) -> list[int]:
    return [int(record[2] or b"") for record in batch.records]


fates = st.sampled_from(
    ["answered", "answer lost", "request lost", "refused for good", "given up after it was stored"]
)


@settings(max_examples=300)
@given(st.lists(st.integers(1, 3), max_size=12), st.lists(fates, max_size=60))
@example([1] * 6, ["answer lost", *["answered"] * 4, "answer lost"])
def test_whatever_is_lost_on_the_way_records_are_stored_once_and_in_order(
    sizes: list[int], script: list[str]
) -> None:
    queue, broker = PartitionQueue(KEY, 5), NaiveBroker()
    numbers = iter(range(1000))
    for size in sizes:
        queue.queue.append(batch_of(*(next(numbers) for _ in range(size))))
    fate = iter(script)
    acknowledged: list[int] = []
    failed: list[int] = []
    while queue:
        sent: list[Batch] = []
        while (batch := queue.next_batch(0.0, lambda _: True)) is not None:
            if queue.queue and batch is queue.queue[0]:
                queue.number(ME)
            batch.stage = Stage.IN_FLIGHT
            sent.append(batch)
        assert sent, "the queue is stuck"
        assert len(queue.window) <= 5
        answers = []
        for batch in sent:
            what = next(fate, "answered")
            if what == "refused for good":
                answers.append((batch, what))
            elif what == "request lost":
                answers.append((batch, "lost"))
            else:
                said = broker.append(batch)
                said = {"answer lost": "lost", "answered": said}.get(what, "refused for good")
                answers.append((batch, said))
        for batch, said in answers:
            if said == "ok":
                acknowledged += values(batch)
                queue.acknowledge(batch)
            elif said == "refused for good":
                failed += values(batch)
                queue.fail(batch)
            elif said == "out of order" and queue.is_oldest(batch):
                assert queue.broken, "the broker misses what was acknowledged"
                batch.stage = Stage.REJECTED
                queue.mend()
            else:
                assert said in ("lost", "out of order")
                batch.stage = Stage.WAITING
    assert broker.stored == sorted(set(broker.stored))
    assert set(acknowledged) <= set(broker.stored)
    assert sorted(acknowledged + failed) == list(range(sum(sizes)))


def test_halves_of_a_batch_cover_the_same_sequence_numbers_across_the_wrap() -> None:
    batch = batch_of(1, 2, 3)
    batch.identity = ME
    batch.base_sequence = 0x7FFFFFFF
    first, second = batch.split()
    assert (values(first), first.base_sequence) == ([1], 0x7FFFFFFF)
    assert (values(second), second.base_sequence) == ([2, 3], 0)
    assert [delivery.batch for delivery in second.deliveries] == [second, second]
    assert [delivery.index for delivery in second.deliveries] == [0, 1]


def test_a_batch_that_is_sent_again_is_the_same_to_the_last_byte() -> None:
    batch = batch_of(1, 2)
    batch.identity = ME
    batch.base_sequence = 3
    assert batch.encode(1) is batch.encode(1)


def test_used_up_epochs_ask_for_another_producer_id() -> None:
    queue = PartitionQueue(KEY, 5)
    queue.queue.append(batch_of(1))
    queue.number(Identity(7, 32_767))
    queue.fail(queue.window[0])
    assert queue.identity is None
    assert queue.next_sequence == 0
