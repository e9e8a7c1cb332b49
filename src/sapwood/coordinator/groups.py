"""All groups of a shard, and their positions: what `__consumer_offsets` makes of itself.

A group is of one type at a time; it may change when it has no members, and keeps its positions.
One that has positions and nothing else is a classic one without members.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from sapwood.coordinator import consumer_records
from sapwood.coordinator.classic_group import CONSUMER, ClassicGroup
from sapwood.coordinator.classic_member import Join
from sapwood.coordinator.consumer_group import ConsumerGroup
from sapwood.coordinator.consumer_heartbeat import Heartbeat
from sapwood.coordinator.consumer_member import JOINING
from sapwood.coordinator.effects import Answer, Append, Effect, Topics
from sapwood.coordinator.group import Group, GroupSettings, never_expires, settings_of
from sapwood.coordinator.group_records import (
    GROUP_KEY,
    OFFSET_KEY,
    group_key,
    group_value,
    offset_key,
    offset_value,
)
from sapwood.coordinator.offsets import (
    Offsets,
    Place,
    Position,
    from_stored,
    key_of,
    value_of,
)
from sapwood.coordinator.sharding import SEPARATOR
from sapwood.coordinator.stored import version_of
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError

CONSUMER_KINDS = frozenset(consumer_records.Kind)
NO_POSITION = Position(-1, -1, "", -1, b"")
NOTHING_YET = NO_POSITION._replace(offset=0)
FIRST_POSITION = "subscribed"
"""The metadata of a position that a durable subscription begins with, unless it has begun."""


class Groups:
    def __init__(self, settings: GroupSettings, topics: Topics) -> None:
        self.settings = settings
        self.topics = topics
        self.offsets = Offsets()
        self._groups: dict[str, Group] = {}
        self._alarms: list[tuple[float, str]] = []
        """A heap of when to look at a group. Too early is no harm."""
        self._alarm_of: dict[str, float] = {}
        self._sweep_at_ms = float("inf")

    # -- one group ---------------------------------------------------------------------------

    def find(self, group_id: str) -> Group | None:
        return self._groups.get(group_id)

    def put(self, group: Group) -> None:
        """A group that is new, or that takes the place of an empty one of another type."""
        self._groups[group.group_id] = group

    def drop(self, group_id: str) -> None:
        self._groups.pop(group_id, None)

    def _classic(self, group_id: str, absent: ErrorCode) -> ClassicGroup:
        group = self._groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            raise KafkaError(absent, f"There is no classic group {group_id!r} with such a member")
        return group

    def _done(self, group_id: str, effects: Sequence[Effect]) -> list[Effect]:
        """After every step of a group: know when to look at it next."""
        group = self._groups.get(group_id)
        if group is not None:
            at_ms = group.wake_at_ms
            if at_ms < self._alarm_of.get(group_id, float("inf")):
                self._alarm_of[group_id] = at_ms
                heapq.heappush(self._alarms, (at_ms, group_id))
        return list(effects)

    # -- the classic protocol ----------------------------------------------------------------

    def join(self, token: object, group_id: str, join: Join, now_ms: int) -> list[Effect]:
        settings = self.settings
        low, high = settings.min_session_timeout_ms, settings.max_session_timeout_ms
        if not low <= join.session_timeout_ms <= high:
            raise KafkaError(
                ErrorCode.INVALID_SESSION_TIMEOUT, f"Session timeouts are from {low} to {high} ms"
            )
        group = self._groups.get(group_id)
        effects: list[Effect] = []
        if not isinstance(group, ClassicGroup):
            if join.member_id:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"There is no group {group_id!r}")
            if group is not None and not group.is_empty:
                raise KafkaError(
                    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                    f"The members of group {group_id!r} speak the newer protocol",
                )
            fresh = ClassicGroup(group_id, settings)
            answered = fresh.join(token, join, now_ms)  # may raise: then nothing has changed
            if group is not None:
                effects.append(Append(group.tombstones()))
            self._groups[group_id] = fresh
            return self._done(group_id, effects + answered)
        return self._done(group_id, group.join(token, join, now_ms))

    def sync(
        self, token: object, message: Struct, assignments: dict[str, bytes], now_ms: int
    ) -> list[Effect]:
        group = self._classic(message.group_id, ErrorCode.UNKNOWN_MEMBER_ID)
        return self._done(message.group_id, group.sync(token, message, assignments, now_ms))

    def heartbeat(self, token: object, message: Struct, now_ms: int) -> list[Effect]:
        group = self._classic(message.group_id, ErrorCode.UNKNOWN_MEMBER_ID)
        return self._done(message.group_id, group.heartbeat(token, message, now_ms))

    def leave(
        self, token: object, group_id: str, leaving: Sequence[Struct], now_ms: int
    ) -> list[Effect]:
        group = self._classic(group_id, ErrorCode.UNKNOWN_MEMBER_ID)
        return self._done(group_id, group.leave(token, leaving, now_ms))

    # -- the newer protocol ------------------------------------------------------------------

    def consumer_heartbeat(
        self, token: object, group_id: str, beat: Heartbeat, now_ms: int
    ) -> list[Effect]:
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return self._done(group_id, group.heartbeat(token, beat, now_ms))
        if beat.member_epoch != JOINING:
            # Kafka says GROUP_ID_NOT_FOUND, with which clients give up; like this they join.
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"There is no group {group_id!r}")
        if group is not None and not group.is_empty:
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"The members of group {group_id!r} speak the classic protocol",
            )
        fresh = ConsumerGroup(group_id, self.topics, settings_of(group_id, self.settings))
        answered = fresh.heartbeat(token, beat, now_ms)  # may raise: then nothing has changed
        effects: list[Effect] = [] if group is None else [Append(group.tombstones())]
        self._groups[group_id] = fresh
        return self._done(group_id, effects + answered)

    def describe_consumers(self, token: object, group_id: str) -> list[Effect]:
        group = self._groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            raise KafkaError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"There is no group {group_id!r} of this protocol"
            )
        return [Answer(token, group.describe())]

    # -- positions ---------------------------------------------------------------------------

    def commit(
        self,
        token: object,
        message: Struct,
        positions: Iterable[tuple[Place, Position]],
        now_ms: int,
    ) -> list[Effect]:
        """OffsetCommit, and TxnOffsetCommit, whose message has a producer."""
        group_id = message.group_id
        epoch = getattr(
            message, "generation_id_or_member_epoch", getattr(message, "generation_id", -1)
        )
        producer_id = getattr(message, "producer_id", -1)
        group = self._groups.get(group_id)
        member_id = getattr(message, "member_id", "")
        positions = list(positions)
        if epoch < 0 and positions and all(_is_first(group_id, it) for _, it in positions):
            pass  # whoever is there by now: nothing of theirs is moved
        elif group is not None:
            group.check_commit(
                member_id,
                getattr(message, "group_instance_id", None),
                epoch,
                now_ms,
                transactional=producer_id >= 0,
            )
        elif epoch >= 0:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"There is no group {group_id!r}")
        records = []
        for place, position in positions:
            if _is_first(group_id, position) and place in self.offsets.of(group_id):
                continue  # two that subscribed at once: the second finds what the first began
            records.append((key_of(group_id, place), value_of(position)))
            self.offsets.put(group_id, place, position, producer_id)
        self._note_positions(group_id)
        producer = (producer_id, message.producer_epoch) if producer_id >= 0 else None
        done = Answer(token, Struct(error_code=0))
        return self._done(group_id, [Append(records, producer), done] if records else [done])

    def fetch(
        self,
        token: object,
        group_id: str,
        places: Iterable[Place] | None,
        *,
        require_stable: bool,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> list[Effect]:
        """None: all that there are. `positions` of the answer: (place, position, error)."""
        group = self._groups.get(group_id)
        if group is not None:
            group.check_fetch(member_id, member_epoch)
        elif member_id is not None and member_epoch >= 0:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"There is no group {group_id!r}")
        known = self.offsets.of(group_id)
        found = []
        for place in sorted(known) if places is None else places:
            if require_stable and self.offsets.is_pending(group_id, place):
                found.append((place, NO_POSITION, ErrorCode.UNSTABLE_OFFSET_COMMIT))
            else:
                found.append((place, known.get(place, NO_POSITION), ErrorCode.NONE))
        return [Answer(token, Struct(positions=found))]

    def held(self, token: object, topic: str, partition: int) -> list[Effect]:
        """The lowest position of a durable subscription to the topic; -1 if there is none."""
        prefix = f"{topic}{SEPARATOR}"
        place = topic, partition
        held = [
            self.offsets.of(group_id).get(place, NOTHING_YET).offset
            for group_id in self.offsets.groups()
            if group_id.startswith(prefix)
        ]
        return [Answer(token, Struct(offset=min(held, default=-1)))]

    def delete_offsets(self, token: object, group_id: str, places: Iterable[Place]) -> list[Effect]:
        """The answer has an error for every place."""
        group = self._groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"There is no group {group_id!r}")
        if not group.is_empty and group.protocol_type != CONSUMER:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, "The group has members")
        errors, gone = [], []
        for place in places:
            if not group.is_empty and group.subscribes_to(place[0]):
                errors.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
            else:
                errors.append(ErrorCode.NONE)
                if place in self.offsets.of(group_id):
                    gone.append(place)
        records = self.offsets.removed(group_id, gone)
        effects: list[Effect] = [Append(records)] if records else []
        return [*effects, Answer(token, Struct(errors=errors))]

    def settle(
        self, producer_id: int, producer_epoch: int, committed: bool, now_ms: int
    ) -> list[Effect]:
        for group_id in self.offsets.settle(producer_id, committed=committed):
            self._note_positions(group_id)
        return []

    def _note_positions(self, group_id: str) -> None:
        """Where there are positions, there is a group."""
        if group_id not in self._groups:
            self._groups[group_id] = ClassicGroup(group_id, self.settings)

    # -- administration ----------------------------------------------------------------------

    def describe(self, token: object, group_id: str) -> list[Effect]:
        group = self._classic(group_id, ErrorCode.GROUP_ID_NOT_FOUND)
        return [Answer(token, group.describe())]

    def list_all(
        self, token: object, states: Sequence[str] = (), types: Sequence[str] = ()
    ) -> list[Effect]:
        wanted_states = {it.lower() for it in states}
        wanted_types = {it.lower() for it in types}
        groups = [
            Struct(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state,
                group_type=group.type,
            )
            for group in self._groups.values()
            if (not wanted_states or group.state.lower() in wanted_states)
            and (not wanted_types or group.type in wanted_types)
        ]
        return [Answer(token, Struct(groups=groups))]

    def delete(self, token: object, group_id: str) -> list[Effect]:
        group = self._groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"There is no group {group_id!r}")
        if not group.is_empty and not never_expires(group_id):
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"Group {group_id!r} has members")
        return [Append(self._forgotten(group)), Answer(token, Struct(error_code=0))]

    def _forgotten(self, group: Group) -> list[tuple[bytes, bytes | None]]:
        self.drop(group.group_id)
        return [*self.offsets.tombstones(group.group_id), *group.tombstones()]

    # -- time and topics ---------------------------------------------------------------------

    @property
    def wake_at_ms(self) -> float:
        first = self._alarms[0][0] if self._alarms else float("inf")
        return min(first, self._sweep_at_ms)

    def tick(self, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        while self._alarms and self._alarms[0][0] <= now_ms:
            at_ms, group_id = heapq.heappop(self._alarms)
            if self._alarm_of.get(group_id) != at_ms:
                continue  # it was told to come earlier, and did
            del self._alarm_of[group_id]
            group = self._groups.get(group_id)
            if group is not None:
                effects += self._done(group_id, group.tick(now_ms))
                self._drop_if_nothing(group)
        if now_ms >= self._sweep_at_ms:
            self._sweep_at_ms = now_ms + self.settings.offsets_retention_check_ms
            effects += self._sweep(now_ms)
        return effects

    def _drop_if_nothing(self, group: Group) -> None:
        """Nothing is known of it, not even to the log: a member id was drawn and never used."""
        if (
            isinstance(group, ClassicGroup)
            and group.is_blank
            and not self.offsets.has_any(group.group_id)
        ):
            self.drop(group.group_id)

    def _sweep(self, now_ms: int) -> list[Effect]:
        """Forget positions that nobody has used for long, and groups that have nothing left."""
        oldest_ms = now_ms - self.settings.offsets_retention_ms
        effects: list[Effect] = []
        for group in list(self._groups.values()):
            group_id = group.group_id
            if never_expires(group_id) and self.offsets.has_any(group_id):
                continue  # without positions it has ended, and only its processes haven't heard
            if group.is_empty and group.empty_since_ms > oldest_ms:
                continue
            old = [
                place
                for place, position in self.offsets.of(group_id).items()
                if position.commit_ms <= oldest_ms
                and not self.offsets.is_pending(group_id, place)
                and (group.is_empty or not group.subscribes_to(place[0]))
            ]
            records: list[tuple[bytes, bytes | None]] = [*self.offsets.removed(group_id, old)]
            if group.is_empty and not self.offsets.has_any(group_id):
                records += self._forgotten(group)
            if records:
                effects.append(Append(records))
        return effects

    def topics_changed(self, now_ms: int) -> list[Effect]:
        deleted = {it for it in self.offsets.topic_ids() if self.topics.was_deleted(it)}
        records = self.offsets.deleted(deleted) if deleted else []
        effects: list[Effect] = [Append(records)] if records else []
        for group in list(self._groups.values()):
            effects += self._done(group.group_id, group.topics_changed(now_ms))
        return effects

    # -- the log -----------------------------------------------------------------------------

    def replay(
        self, key: bytes | None, value: bytes | None, producer: tuple[int, int] | None
    ) -> None:
        if key is None:
            return
        kind = version_of(key)
        if kind == GROUP_KEY:
            self._replay_group(group_key.decode(key).group, value)
        elif kind == OFFSET_KEY:
            self._replay_position(offset_key.decode(key), value, producer)
        elif kind in CONSUMER_KINDS:
            self._replay_consumers(consumer_records.decode(key, value))
        # Unknown ones are left alone: a newer release may have written them.

    def _replay_group(self, group_id: str, value: bytes | None) -> None:
        if value is None:
            if isinstance(self._groups.get(group_id), ClassicGroup):
                self.drop(group_id)
            return
        group = ClassicGroup(group_id, self.settings)
        group.replay(group_value.decode(value))
        self._groups[group_id] = group

    def _replay_consumers(self, record: consumer_records.ConsumerRecord) -> None:
        group = self._groups.get(record.group_id)
        if not isinstance(group, ConsumerGroup):
            if record.value is None:
                return
            group = ConsumerGroup(
                record.group_id, self.topics, settings_of(record.group_id, self.settings)
            )
            self._groups[record.group_id] = group
        group.apply(record)
        if record.kind is consumer_records.Kind.GROUP_METADATA and record.value is None:
            self.drop(record.group_id)

    def _replay_position(
        self, key: Struct, value: bytes | None, producer: tuple[int, int] | None
    ) -> None:
        place = key.topic, key.partition
        if value is None:
            self.offsets.remove(key.group, place)
        else:
            producer_id = -1 if producer is None else producer[0]
            self.offsets.put(key.group, place, from_stored(offset_value.decode(value)), producer_id)

    def loaded(self, now_ms: int) -> list[Effect]:
        for group_id in self.offsets.groups():
            self._note_positions(group_id)
        effects: list[Effect] = []
        for group in list(self._groups.values()):
            effects += self._done(group.group_id, group.loaded(now_ms))
        self._sweep_at_ms = now_ms + self.settings.offsets_retention_check_ms
        return effects + self.topics_changed(now_ms)


def _is_first(group_id: str, position: Position) -> bool:
    return position.metadata == FIRST_POSITION and never_expires(group_id)
