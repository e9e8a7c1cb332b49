"""A machine of groups with its log, driven by hand: what it appends is committed at once."""

from collections.abc import Iterator, Sequence
from typing import Any

from sapwood.coordinator.classic_member import Join
from sapwood.coordinator.effects import Answer, Append, Effect, TopicFacts
from sapwood.coordinator.group import GroupSettings
from sapwood.coordinator.groups import Groups
from sapwood.coordinator.offsets import Place, Position
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError

TOPIC_ID = b"t" * 16


class SomeTopics:
    """Topics as a test wants them."""

    def __init__(self) -> None:
        self.known: dict[str, TopicFacts] = {"orders": TopicFacts("orders", TOPIC_ID, 6)}
        self.deleted: set[bytes] = set()

    def __iter__(self) -> Iterator[TopicFacts]:
        return iter(self.known.values())

    def find(self, name: str) -> TopicFacts | None:
        return self.known.get(name)

    def find_by_id(self, topic_id: bytes) -> TopicFacts | None:
        return next((it for it in self if it.topic_id == topic_id), None)

    def was_deleted(self, topic_id: bytes) -> bool:
        return topic_id in self.deleted


def subscription(*topics: str) -> bytes:
    encoded = [it.encode() for it in topics]
    parts = [len(it).to_bytes(2, "big") + it for it in encoded]
    return b"\0\0" + len(topics).to_bytes(4, "big") + b"".join(parts) + b"\xff\xff\xff\xff"


class Driven:
    def __init__(self, settings: GroupSettings | None = None) -> None:
        self.settings = settings or GroupSettings(initial_rebalance_delay_ms=0)
        self.topics = SomeTopics()
        self.now_ms = 1_000_000
        self.log: list[tuple[bytes, bytes | None, tuple[int, int] | None]] = []
        self.markers: dict[int, tuple[int, int, bool]] = {}
        """By the place in the log that they follow."""
        self.answers: dict[object, Struct] = {}
        self._ids = 0
        self.groups = Groups(self.settings, self.topics)
        self.carry_out(self.groups.loaded(self.now_ms))

    # -- the shell's part --------------------------------------------------------------------

    def carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Append):
                self.log += [(key, value, effect.producer) for key, value in effect.records]
            elif isinstance(effect, Answer):
                if effect.token in self.answers:
                    raise AssertionError("answered twice")
                self.answers[effect.token] = effect.message

    def fail_over(self) -> None:
        """Another node makes the machine from the log; who waited is sent away."""
        self.groups = Groups(self.settings, self.topics)
        for index, (key, value, producer) in enumerate(self.log):
            self.groups.replay(key, value, producer)
            if (marker := self.markers.get(index)) is not None:
                self.groups.settle(*marker, self.now_ms)
        self.carry_out(self.groups.loaded(self.now_ms))

    def settle(self, producer_id: int, *, committed: bool) -> None:
        self.markers[len(self.log) - 1] = (producer_id, 0, committed)
        self.carry_out(self.groups.settle(producer_id, 0, committed, self.now_ms))

    def pass_time(self, duration_ms: int) -> None:
        """Time passes, and the machine is woken whenever it wants to be."""
        end_ms = self.now_ms + duration_ms
        while self.groups.wake_at_ms <= end_ms:
            self.now_ms = max(self.now_ms, int(self.groups.wake_at_ms))
            self.carry_out(self.groups.tick(self.now_ms))
        self.now_ms = end_ms

    def settle_down(self) -> None:
        """Do what is due now."""
        self.pass_time(0)

    def token(self) -> int:
        self._ids += 1
        return self._ids

    def asked(self, token: object) -> Struct:
        self.settle_down()
        return self.answers[token]

    # -- requests ----------------------------------------------------------------------------

    def join(self, member_id: str = "", group: str = "g", **changes: Any) -> int:
        """The token under which the answer will come."""
        token = self.token()
        fields: dict[str, Any] = {
            "member_id": member_id,
            "instance_id": None,
            "client_id": "client",
            "client_host": "/host",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 30_000,
            "protocol_type": "consumer",
            "protocols": (("range", subscription("orders")),),
            "new_member_id": f"member-{token}",
            "requires_member_id": False,
        }
        join = Join(**{**fields, **changes})
        try:
            self.carry_out(self.groups.join(token, group, join, self.now_ms))
        except KafkaError as error:
            self.answers[token] = Struct(error_code=int(error.code))
        return token

    def sync(self, member_id: str, generation: int, **assigned: bytes) -> int:
        token = self.token()
        message = Struct(
            group_id="g", member_id=member_id, generation_id=generation, group_instance_id=None
        )
        named = {name.replace("_", "-"): it for name, it in assigned.items()}
        try:
            self.carry_out(self.groups.sync(token, message, named, self.now_ms))
        except KafkaError as error:
            self.answers[token] = Struct(error_code=int(error.code))
        return token

    def heartbeat(
        self, member_id: str, generation: int, group: str = "g", instance_id: str | None = None
    ) -> ErrorCode:
        token = self.token()
        message = Struct(
            group_id=group,
            member_id=member_id,
            generation_id=generation,
            group_instance_id=instance_id,
        )
        try:
            self.carry_out(self.groups.heartbeat(token, message, self.now_ms))
        except KafkaError as error:
            return error.code
        return ErrorCode(self.answers[token].error_code)

    def leave(self, *members: tuple[str, str | None], group: str = "g") -> list[ErrorCode]:
        token = self.token()
        leaving = [Struct(member_id=it, group_instance_id=instance) for it, instance in members]
        try:
            self.carry_out(self.groups.leave(token, group, leaving, self.now_ms))
        except KafkaError as error:
            return [error.code]
        return [ErrorCode(it.error_code) for it in self.answers[token].members]

    def commit(
        self,
        offset: int,
        member_id: str = "",
        generation: int = -1,
        *,
        group: str = "g",
        place: Place = ("orders", 0),
        producer_id: int = -1,
        metadata: str = "",
    ) -> ErrorCode:
        token = self.token()
        message = Struct(
            group_id=group,
            member_id=member_id,
            generation_id_or_member_epoch=generation,
            group_instance_id=None,
        )
        if producer_id >= 0:
            message.producer_id, message.producer_epoch = producer_id, 0
        position = Position(offset, -1, metadata, self.now_ms, TOPIC_ID)
        try:
            self.carry_out(self.groups.commit(token, message, [(place, position)], self.now_ms))
        except KafkaError as error:
            return error.code
        return ErrorCode(self.answers[token].error_code)

    def fetch(
        self, group: str = "g", place: Place = ("orders", 0), *, stable: bool = False
    ) -> int | ErrorCode:
        token = self.token()
        self.carry_out(self.groups.fetch(token, group, [place], require_stable=stable))
        ((_, position, error),) = self.answers[token].positions
        return error or int(position.offset)

    def state_of(self, group: str = "g") -> str:
        found = self.groups.find(group)
        return "Dead" if found is None else found.state

    def listed(self, *states: str) -> list[str]:
        token = self.token()
        self.carry_out(self.groups.list_all(token, states))
        return [it.group_id for it in self.answers[token].groups]

    def formed(self, count: int, **changes: Any) -> tuple[list[str], int]:
        """A group of so many members that has its assignments: member ids and generation."""
        tokens = [self.join(**changes) for _ in range(count)]
        joined = [self.asked(it) for it in tokens]
        members = [it.member_id for it in joined]
        generation = joined[0].generation_id
        leader = joined[0].leader
        assigned = {it.replace("-", "_"): it.encode() for it in members}
        for member in members:
            self.sync(member, generation, **(assigned if member == leader else {}))
        return members, generation
