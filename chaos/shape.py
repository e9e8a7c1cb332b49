"""The shape of a workload, drawn from a seed: a bug may need small batches, or large ones."""

import random
from dataclasses import asdict, dataclass, replace
from typing import Any

# Together they keep a run within what two cores and a small disk can bear.
MOST_BYTES_PER_S = 400_000
RECORD_RATES = (100, 300, 1000)


@dataclass(frozen=True, slots=True)
class Shape:
    topics: dict[str, int]
    """Name → number of partitions."""
    producers: int
    threads: int
    """Threads that drive the producers, each some of them."""
    rate_per_s: float
    """Records of all producers together."""
    size_bytes: int
    varied_sizes: bool
    """Anything up to `size_bytes`, instead of just that."""
    keyed: bool
    """The client's own partitioner decides, instead of the producer for itself."""
    linger_ms: int
    batch_bytes: int
    compression: str
    window: int
    """Records of a producer that wait for their acknowledgement, for each partition."""
    requests_in_flight: int
    patience_ms: int
    """How long a client waits for an answer before it tries elsewhere."""
    segment_bytes: int
    readers: tuple[str, ...]

    @property
    def partitions(self) -> list[tuple[str, int]]:
        return [(name, number) for name, count in self.topics.items() for number in range(count)]

    def filling(self) -> "Shape":
        """The same, but so that a full disk is felt soon: room allocated ahead doesn't last."""
        size_bytes = max(self.size_bytes, 1000)
        return replace(
            self,
            topics={"t0": 1},
            size_bytes=size_bytes,
            rate_per_s=MOST_BYTES_PER_S / size_bytes,
            varied_sizes=False,
            compression="none",
            window=1000,
            segment_bytes=1 << 18,
        )

    def about(self) -> dict[str, Any]:
        return asdict(self)


def drawn(chance: random.Random) -> Shape:
    size_bytes = chance.choice((16, 100, 100, 1000, 10_000))
    producers = chance.choice((1, 2, 4, 8))
    topics = {f"t{n}": chance.choice((1, 1, 2, 4)) for n in range(chance.choice((1, 1, 2, 3)))}
    return Shape(
        topics=topics,
        producers=producers,
        threads=chance.randint(1, producers),
        rate_per_s=min(chance.choice(RECORD_RATES), MOST_BYTES_PER_S / size_bytes),
        size_bytes=size_bytes,
        varied_sizes=chance.random() < 0.5,
        keyed=chance.random() < 0.3,
        linger_ms=chance.choice((0, 1, 5, 50)),
        batch_bytes=chance.choice((1_000, 16_000, 1_000_000)),
        compression=chance.choice(("none", "none", "gzip", "lz4", "zstd", "snappy")),
        window=chance.choice((1, 10, 100, 1000)),
        requests_in_flight=chance.choice((1, 5, 5)),
        patience_ms=chance.choice((1_000, 2_000, 10_000)),
        segment_bytes=chance.choice((1 << 20, 1 << 24, 1 << 30)),
        readers=chance.choice((("confluent",), ("confluent", "aiokafka"), ("confluent",) * 2)),
    )


def steady() -> Shape:
    """The same every time, to compare gaps by: small batches at a moderate pace."""
    return Shape(
        topics={"t0": 3},
        producers=4,
        threads=2,
        rate_per_s=400,
        size_bytes=100,
        varied_sizes=False,
        keyed=False,
        linger_ms=1,
        batch_bytes=100_000,
        compression="none",
        window=100,
        requests_in_flight=5,
        patience_ms=1_000,
        segment_bytes=1 << 30,
        readers=("confluent",),
    )
