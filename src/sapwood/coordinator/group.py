"""What the groups of a shard have in common, whichever protocol their members speak."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from sapwood.coordinator.effects import Effect
from sapwood.coordinator.sharding import SEPARATOR

MINUTE_MS = 60_000
DURABLE_SESSION_TIMEOUT_MS = 6_000


@dataclass(slots=True, frozen=True)
class GroupSettings:
    """Kafka's broker configs for groups, under their names."""

    min_session_timeout_ms: int = 1000
    max_session_timeout_ms: int = 30 * MINUTE_MS
    initial_rebalance_delay_ms: int = 100
    max_size: int = 10_000
    offsets_retention_ms: int = 7 * 24 * 60 * MINUTE_MS
    offsets_retention_check_ms: int = 10 * MINUTE_MS
    new_member_join_timeout_ms: int = 5 * MINUTE_MS
    consumer_session_timeout_ms: int = 45_000
    """Consumer: of the newer protocol, in which the group sets these."""
    consumer_heartbeat_interval_ms: int = 1000
    consumer_max_size: int = 2000


class Group(Protocol):
    """One group, as `Groups` handles it. What it returns and raises is as with a machine."""

    group_id: str

    @property
    def type(self) -> str:
        """As ListGroups tells it: classic or consumer."""

    @property
    def state(self) -> str:
        """As ListGroups tells it."""

    @property
    def protocol_type(self) -> str: ...

    @property
    def is_empty(self) -> bool:
        """Without members: it may be deleted, or turn into one of another type."""

    @property
    def empty_since_ms(self) -> int:
        """Positions of an empty group are kept for so long from then on."""

    @property
    def wake_at_ms(self) -> float: ...

    def loaded(self, now_ms: int) -> list[Effect]: ...

    def tick(self, now_ms: int) -> list[Effect]: ...

    def topics_changed(self, now_ms: int) -> list[Effect]: ...

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        now_ms: int,
        *,
        transactional: bool,
    ) -> None:
        """Whether who says to be this member, in this generation or epoch, may commit."""

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None: ...

    def subscribes_to(self, topic: str) -> bool: ...

    def tombstones(self) -> Sequence[tuple[bytes, None]]:
        """What makes the log forget the group; its positions are not its own affair."""


def settings_of(group_id: str, settings: GroupSettings) -> GroupSettings:
    """A durable subscriber that has died is to come back from another process soon; one that was
    only slow is let in again at once, and loses nothing but its turn."""
    if not never_expires(group_id):
        return settings
    session_ms = min(settings.consumer_session_timeout_ms, DURABLE_SESSION_TIMEOUT_MS)
    return replace(settings, consumer_session_timeout_ms=session_ms)


def never_expires(group_id: str) -> bool:
    """Durable subscriptions are kept until somebody ends them."""
    return SEPARATOR in group_id
