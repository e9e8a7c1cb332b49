"""What a machine and the shell around it say to each other."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from sapwood.wire.codec import Struct


class Append(NamedTuple):
    """One batch, atomically, to the shard's own partition; the state already has it."""

    records: Sequence[tuple[bytes, bytes | None]]
    """Key and value; None is a tombstone."""
    producer: tuple[int, int] | None = None
    """Producer id and epoch of a transaction that the batch is part of."""


class Answer(NamedTuple):
    """To whoever waits under the token."""

    token: object
    message: Struct


Effect: TypeAlias = Append | Answer | tuple[Any, ...]
"""Others are named tuples of a machine's own, which its kind of shard carries out."""


class Machine(Protocol):
    """Each request has a method of its own: (token, message, now_ms, …) → effects.

    A method may raise `KafkaError` as long as it has changed nothing: that is its answer, then.
    """

    def replay(
        self, key: bytes | None, value: bytes | None, producer: tuple[int, int] | None
    ) -> None:
        """A record of the log, while the shard is loaded."""

    def settle(
        self, producer_id: int, producer_epoch: int, committed: bool, now_ms: int
    ) -> list[Effect]:
        """A transaction has ended: its marker is in the log."""

    def loaded(self, now_ms: int) -> list[Effect]:
        """Everything was replayed, and this node leads: timers start anew."""

    def tick(self, now_ms: int) -> list[Effect]:
        """Do what is due."""

    def topics_changed(self, now_ms: int) -> list[Effect]:
        """A topic was made or deleted, or has more partitions."""

    @property
    def wake_at_ms(self) -> float:
        """When `tick` wants to be called next; infinite: never."""


class TopicFacts(NamedTuple):
    name: str
    topic_id: bytes
    partition_count: int


class Topics(Protocol):
    """The topics that there are now, for machines that have to know."""

    def __iter__(self) -> Iterator[TopicFacts]: ...

    def find(self, name: str) -> TopicFacts | None: ...

    def find_by_id(self, topic_id: bytes) -> TopicFacts | None: ...

    def was_deleted(self, topic_id: bytes) -> bool:
        """Known to be gone for good, which is more than not to be known."""
