"""The verdict: what an audit comes to, small enough for a person, a page and a program."""

from __future__ import annotations

import msgspec

MEANINGS = {
    "lost": "acknowledged, but not there",
    "gap": "numbers of a producer that are nowhere",
    "duplicate": "the same number of a producer, there once more",
    "reordered": "behind a later number of its producer, in the same partition",
    "misplaced": "acknowledged for another place than where it lies",
    "aborted": "of an aborted transaction, but visible",
    "undelivered": "passed over by a subscriber",
    "delivered twice": "given to a subscriber once more",
    "delivered late": "given to a subscriber after a later one of its partition",
    "delivered aborted": "given to a subscriber, of a transaction that was aborted",
    "delivered otherwise": "given to a subscriber with another content, or from nowhere",
}


class Finding(msgspec.Struct, frozen=True):
    kind: str
    topic: str | None
    partition: int | None
    offset: int | None
    timestamp_ms: int | None
    producer: str | None
    sequence: int | None
    subscriber: str | None
    count: int
    text: str

    @property
    def place(self) -> str:
        partition = "" if self.partition is None else f"-{self.partition}"
        offset = "" if self.offset is None else f"@{self.offset}"
        return f"{self.topic or '?'}{partition}{offset}"

    @property
    def explained(self) -> str:
        who = "" if self.producer is None else f"{self.producer} {self.sequence}: "
        whom = "" if self.subscriber is None else f"subscriber {self.subscriber}: "
        return f"{who}{whom}{self.text}"

    def __str__(self) -> str:
        return f"{self.kind} at {self.place}: {self.explained}"


class Share(msgspec.Struct, frozen=True):
    """What one producer has in one partition."""

    producer: str
    topic: str
    partition: int
    records: int
    bytes: int
    first: int
    last: int


class Strip(msgspec.Struct, frozen=True):
    """How much of a producer's numbers is there, from the first to the last, in equal steps."""

    producer: str
    where: str
    """What it counts in, if not in everything."""
    first: int
    last: int
    counts: list[int]


class Subscription(msgspec.Struct, frozen=True):
    """What one subscriber has got of one partition."""

    subscriber: str
    topic: str
    partition: int
    deliveries: int
    first: int
    last: int


class Verdict(msgspec.Struct, frozen=True):
    topics: list[str]
    records: int
    unnumbered: int
    bytes: int
    producers: int
    receipts: int | None
    """Acknowledgements that were held against the log."""
    deliveries: int | None
    began_ms: int
    ended_ms: int
    unjudged: list[str]
    """What couldn't be looked for, and why."""
    found: dict[str, int]
    """How many findings of each kind."""
    examples: list[Finding]
    shares: list[Share]
    strips: list[Strip]
    rates: dict[str, list[int]]
    """Records of each topic, from `began_ms` to `ended_ms` in equal steps."""
    subscriptions: list[Subscription]

    @property
    def is_clean(self) -> bool:
        return not self.found

    @property
    def headline(self) -> str:
        seen = [_plural(self.records, "record"), _plural(self.producers, "producer")]
        if self.receipts is not None:
            seen.append(_plural(self.receipts, "acknowledgement"))
        if self.deliveries is not None:
            seen.append(_plural(self.deliveries, "delivery", "deliveries"))
        if self.unnumbered:
            seen.append(f"{_plural(self.unnumbered, 'record')} without a number")
        outcome = "clean" if self.is_clean else _plural(sum(self.found.values()), "finding")
        return f"{outcome}: {', '.join(seen)}"

    def __str__(self) -> str:
        kinds = [f"  {kind}: {count:,}, {MEANINGS[kind]}" for kind, count in self.found.items()]
        unjudged = [f"  not judged: {reason}" for reason in self.unjudged]
        return "\n".join([self.headline, *kinds, *unjudged])


def _plural(count: int, noun: str, nouns: str | None = None) -> str:
    return f"{count:,} {noun if count == 1 else nouns or f'{noun}s'}"
