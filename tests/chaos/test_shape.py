import random

from chaos.shape import MOST_BYTES_PER_S, drawn


def test_the_same_seed_draws_the_same_shape() -> None:
    shapes = [drawn(random.Random(seed)) for seed in range(50)]
    assert shapes == [drawn(random.Random(seed)) for seed in range(50)]
    assert len({str(it) for it in shapes}) > 40


def test_a_shape_stays_within_what_a_small_machine_can_bear() -> None:
    for seed in range(200):
        shape = drawn(random.Random(seed))
        assert shape.rate_per_s * shape.size_bytes <= MOST_BYTES_PER_S
        assert 1 <= shape.threads <= shape.producers
        assert len(shape.partitions) == sum(shape.topics.values()) > 0
