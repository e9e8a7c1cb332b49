"""Who a partition has to do with on its node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from sapwood.raft import HardState, Vote

if TYPE_CHECKING:
    from sapwood.replica.partition import Partition


class CommitListener(Protocol):
    """Told of every advance of the high watermark, and of changes that end a wait."""

    def committed(self, partition: Partition, size_bytes: int) -> None: ...


class SnapshotState(Protocol):
    """What follows from a log beyond the log itself."""

    def save(self) -> bytes: ...

    def keep(self, state: bytes) -> None:
        """Have what another one saved on disk for good; OSError if that fails."""

    def load(self, state: bytes) -> None: ...


class Host(Protocol):
    """What a partition needs of the node that it is on."""

    def hybrid_now(self) -> int: ...

    def save(self, partition: Partition, state: HardState) -> None: ...

    def ask(self, partition: Partition, vote: Vote, nodes: tuple[int, ...]) -> None: ...

    def hand_over(self, partition: Partition, node: int, epoch: int) -> None: ...

    def role_changed(self, partition: Partition) -> None: ...

    def progressed(self, partition: Partition, *, appended: bool) -> None:
        """Appended to, durable further than before, or committed: whoever follows may care."""

    def went_offline(self, partition: Partition) -> None: ...

    def grew(self, partition: Partition) -> None:
        """Told after every so many bytes, so that a restart need not look at them again."""
