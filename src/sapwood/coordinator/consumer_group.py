"""A group of the newer protocol: its coordinator decides who reads what, and members follow.

Members send heartbeats. Whenever who is in the group, or what they are subscribed to, changes, the
*group epoch* rises, and a new *target assignment* is made for it. At its own pace, one heartbeat
after the other, each member gets from what it has to what it should have (`consumer_member`), and
then has the target's epoch as its own *member epoch*, which its commits are held against.

State changes by records only, the same when they are made and when they are replayed. Deadlines
are not among them: they start anew wherever the group is loaded.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable

from sapwood.coordinator import consumer_records as records
from sapwood.coordinator.assignors import ASSIGNORS, NOTHING, Assignment, TopicPartition
from sapwood.coordinator.consumer_heartbeat import Heartbeat
from sapwood.coordinator.consumer_member import (
    JOINING,
    LEAVING_FOR_A_WHILE,
    Current,
    MemberMetadata,
    MemberState,
    reconciled,
)
from sapwood.coordinator.consumer_records import ConsumerRecord, GroupMetadata, Kind, Value
from sapwood.coordinator.consumer_subscriptions import Subscriptions
from sapwood.coordinator.effects import Answer, Append, Effect, TopicFacts, Topics
from sapwood.coordinator.group import GroupSettings
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError

DEFAULT_ASSIGNOR = next(iter(ASSIGNORS))
WAITING_INTERVAL_MS = 100
"""Between heartbeats of a member that waits for what others are about to give up."""
MEMBER_KINDS = (Kind.CURRENT_ASSIGNMENT, Kind.TARGET_MEMBER, Kind.MEMBER_METADATA)
CONSUMER_MEMBER = 1
"""The type of member that descriptions tell."""


class ConsumerGroup:
    def __init__(self, group_id: str, topics: Topics, settings: GroupSettings) -> None:
        self.group_id = group_id
        self._topics = topics
        self._settings = settings
        self.group_epoch = 0
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.members: dict[str, MemberMetadata] = {}
        self.target: dict[str, Assignment] = {}
        self.current: dict[str, Current] = {}

        # What follows from the above.
        self._holders: dict[TopicPartition, str] = {}
        self._static_members: dict[str, str] = {}
        self._subscriptions = Subscriptions(topics)

        # What is not in the log.
        self._sessions_end_ms: dict[str, float] = {}
        self._revocations_end_ms: dict[str, float] = {}
        self.wake_at_ms = math.inf
        """Not later than when `tick` has something to do."""
        self.empty_since_ms = 0
        self._written: list[tuple[bytes, bytes | None]] = []

    # -- records -----------------------------------------------------------------------------

    def apply(self, record: ConsumerRecord) -> None:
        member_id, value = record.member_id, record.value
        match record.kind:
            case Kind.GROUP_METADATA:
                if isinstance(value, GroupMetadata):
                    self.group_epoch, self.metadata_hash = value
            case Kind.MEMBER_METADATA:
                self._apply_metadata(
                    member_id, value if isinstance(value, MemberMetadata) else None
                )
            case Kind.TARGET_METADATA:
                if isinstance(value, int):
                    self.assignment_epoch = value
            case Kind.TARGET_MEMBER:
                if isinstance(value, frozenset):
                    self.target[member_id] = value
                else:
                    self.target.pop(member_id, None)
            case Kind.CURRENT_ASSIGNMENT:
                self._apply_current(member_id, value if isinstance(value, Current) else None)

    def tombstones(self) -> list[tuple[bytes, None]]:
        """An empty group has no more of its members; a durable subscription may end with some."""
        gone = [(kind, it) for it in self.members for kind in MEMBER_KINDS]
        gone += [(Kind.TARGET_METADATA, ""), (Kind.GROUP_METADATA, "")]
        made = (ConsumerRecord(kind, self.group_id, it, None) for kind, it in gone)
        return [(records.encode(it)[0], None) for it in made]

    def _write(self, kind: Kind, member_id: str, value: Value | None) -> None:
        record = ConsumerRecord(kind, self.group_id, member_id, value)
        self.apply(record)
        self._written.append(records.encode(record))

    def _effects(self) -> list[Effect]:
        """What was changed, in one batch."""
        written, self._written = self._written, []
        return [Append(written)] if written else []

    def _apply_metadata(self, member_id: str, metadata: MemberMetadata | None) -> None:
        before = self.members.pop(member_id, None)
        if before is not None and self._static_members.get(before.instance_id or "") == member_id:
            del self._static_members[before.instance_id or ""]
        if metadata is not None:
            self.members[member_id] = metadata
            if metadata.instance_id is not None:
                self._static_members[metadata.instance_id] = member_id

    def _apply_current(self, member_id: str, current: Current | None) -> None:
        # An older record of a member may be replayed after a newer one of the member that has got
        # its partitions since: compaction removes what came between.
        for one in self.current.pop(member_id, Current()).held:
            if self._holders.get(one) == member_id:
                del self._holders[one]
        if current is not None:
            self.current[member_id] = current
            self._holders.update(dict.fromkeys(current.held, member_id))

    # -- questions ---------------------------------------------------------------------------

    @property
    def type(self) -> str:
        return "consumer"

    @property
    def protocol_type(self) -> str:
        return "consumer"

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def state(self) -> str:
        if not self.members:
            return "Empty"
        if self.assignment_epoch < self.group_epoch:
            return "Assigning"
        settled = (self.assignment_epoch, MemberState.STABLE)
        if any((it.member_epoch, it.state) != settled for it in self.current.values()):
            return "Reconciling"
        return "Stable"

    @property
    def assignor(self) -> str:
        """What most of the members that have a wish wish for."""
        votes = Counter(it.server_assignor for it in self.members.values() if it.server_assignor)
        return max(votes, key=lambda name: (votes[name], name), default=DEFAULT_ASSIGNOR)

    def subscribes_to(self, topic: str) -> bool:
        return any(topic in it for it in self._subscriptions.names(self.members).values())

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        now_ms: int,
        *,
        transactional: bool,
    ) -> None:
        """Whether this member, in this epoch, may commit positions."""
        if epoch < 0 and not self.members:
            return  # an administrator, or a consumer that assigns itself its partitions
        if transactional and epoch < 0 and not member_id and instance_id is None:
            return  # older producers don't tell whom they commit for
        stale = ErrorCode.ILLEGAL_GENERATION if transactional else ErrorCode.STALE_MEMBER_EPOCH
        self._check_epoch(member_id, epoch, stale)

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Whether who asks for committed positions is who it says, if it says so."""
        if member_id or member_epoch >= 0:
            self._check_epoch(member_id or "", member_epoch, ErrorCode.STALE_MEMBER_EPOCH)

    def describe(self) -> Struct:
        return Struct(
            error_code=0,
            error_message=None,
            group_id=self.group_id,
            group_state=self.state,
            group_epoch=self.group_epoch,
            assignment_epoch=self.assignment_epoch,
            assignor_name=self.assignor,
            members=[self._describe_member(member_id) for member_id in self.members],
            authorized_operations=-(2**31),
        )

    def _describe_member(self, member_id: str) -> Struct:
        metadata, current = self.members[member_id], self.current.get(member_id, Current())
        return Struct(
            member_id=member_id,
            instance_id=metadata.instance_id,
            rack_id=metadata.rack_id,
            member_epoch=current.member_epoch,
            client_id=metadata.client_id,
            client_host=metadata.client_host,
            subscribed_topic_names=list(metadata.subscribed_topic_names),
            subscribed_topic_regex=metadata.subscribed_topic_regex,
            assignment=self._describe_assignment(current.assigned),
            target_assignment=self._describe_assignment(self.target.get(member_id, NOTHING)),
            member_type=CONSUMER_MEMBER,
        )

    def _describe_assignment(self, assignment: Assignment) -> Struct:
        described = records.topic_partitions(assignment)
        for one in described:
            facts = self._topics.find_by_id(one.topic_id)
            one.topic_name = "" if facts is None else facts.name
        return Struct(topic_partitions=[one for one in described if one.topic_name])

    def _check_epoch(self, member_id: str, member_epoch: int, stale: ErrorCode) -> None:
        current = self._find(member_id)
        if current.member_epoch != member_epoch:
            raise KafkaError(
                stale, f"Member {member_id} is in epoch {current.member_epoch}, not {member_epoch}"
            )

    def _find(self, member_id: str) -> Current:
        current = self.current.get(member_id)
        if current is None or member_id not in self.members:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Group {self.group_id!r} has no member {member_id[:300]!r}: it has to join",
            )
        return current

    # -- heartbeats --------------------------------------------------------------------------

    def heartbeat(self, token: object, beat: Heartbeat, now_ms: int) -> list[Effect]:
        answer = self._leave(beat, now_ms) if beat.is_leaving else self._go_on(beat, now_ms)
        return [*self._effects(), Answer(token, answer)]

    def _go_on(self, beat: Heartbeat, now_ms: int) -> Struct:
        if beat.member_epoch == JOINING:
            replaced = self._joins_in_place_of(beat)
        else:
            replaced = None
            self._check_heartbeat(beat)
        predecessor = replaced or beat.member_id
        before = self.members.get(predecessor)
        metadata = beat.metadata(None if beat.member_epoch == JOINING else before)
        self._subscriptions.check(metadata.subscribed_topic_regex)
        if replaced:
            self._replace(replaced, beat.member_id)
        if metadata != self.members.get(beat.member_id):
            self._write(Kind.MEMBER_METADATA, beat.member_id, metadata)
        if before is None or not metadata.subscribes_like(before):
            self._retarget(changed=True)
        had = self.current.get(beat.member_id)
        current = reconciled(
            had or Current(),
            self.target.get(beat.member_id, NOTHING),
            self.assignment_epoch,
            beat.owned,
            lambda one: self._holders.get(one, beat.member_id) == beat.member_id,
        )
        if current != had:
            self._write(Kind.CURRENT_ASSIGNMENT, beat.member_id, current)
            self._revocations_end_ms.pop(beat.member_id, None)
        self._heard_of(beat.member_id, now_ms)
        tell = beat.is_full or had is None or had.assigned != current.assigned
        return self._answer(beat.member_id, current, tell_assignment=tell)

    def _answer(self, member_id: str, current: Current, *, tell_assignment: bool) -> Struct:
        interval_ms = self._settings.consumer_heartbeat_interval_ms
        if current.state is MemberState.UNRELEASED:
            # What it waits for may be free in a moment; but many that wait mustn't be a flood.
            waiting_ms = max(WAITING_INTERVAL_MS, 2 * len(self.members))
            interval_ms = min(interval_ms, waiting_ms)
        assignment = None
        if tell_assignment:
            assignment = Struct(topic_partitions=records.topic_partitions(current.assigned))
        return Struct(
            error_code=0,
            error_message=None,
            member_id=member_id,
            member_epoch=current.member_epoch,
            heartbeat_interval=interval_ms,
            assignment=assignment,
        )

    def _joins_in_place_of(self, beat: Heartbeat) -> str | None:
        """The static member whose successor it is, if there is one."""
        namesake = self._static_members.get(beat.instance_id or "")
        if namesake is not None and namesake != beat.member_id:
            if self.current[namesake].member_epoch != LEAVING_FOR_A_WHILE:
                raise KafkaError(
                    ErrorCode.UNRELEASED_INSTANCE_ID,
                    f"Instance {beat.instance_id!r} is in the group, as member {namesake}",
                )
            return namesake
        if (
            beat.member_id not in self.members
            and len(self.members) >= self._settings.consumer_max_size
        ):
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"Group {self.group_id!r} has {len(self.members)} members already",
            )
        return None

    def _check_heartbeat(self, beat: Heartbeat) -> None:
        self._check_instance(beat)
        current = self._find(beat.member_id)
        if beat.member_epoch == current.member_epoch:
            return
        # Its last answer was lost: it may go on, unless it has more than it has been left.
        lost = beat.member_epoch == current.previous_member_epoch
        if not lost or beat.owned is None or not beat.owned <= current.assigned:
            raise KafkaError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                f"Member {beat.member_id} is in epoch {current.member_epoch}, "
                f"not {beat.member_epoch}: it has to give up what it has and join again",
            )

    def _check_instance(self, beat: Heartbeat) -> None:
        if beat.instance_id is None:
            return
        namesake = self._static_members.get(beat.instance_id)
        if namesake is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Group {self.group_id!r} has no instance {beat.instance_id!r}: it has to join",
            )
        if namesake != beat.member_id:
            raise KafkaError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Instance {beat.instance_id!r} is member {namesake} now",
            )

    def _replace(self, old: str, new: str) -> None:
        """A static member is back under another member id: everything is as it was."""
        metadata, target = self.members[old], self.target.get(old, NOTHING)
        assigned = self.current[old].assigned
        self._write_removal(old)
        self._write(Kind.MEMBER_METADATA, new, metadata)
        self._write(Kind.TARGET_MEMBER, new, target)
        self._write(Kind.CURRENT_ASSIGNMENT, new, Current(assigned=assigned))

    def _leave(self, beat: Heartbeat, now_ms: int) -> Struct:
        self._check_instance(beat)
        current = self._find(beat.member_id)
        if beat.member_epoch == LEAVING_FOR_A_WHILE:
            away = LEAVING_FOR_A_WHILE
            waiting = Current(away, away, assigned=current.assigned)
            self._write(Kind.CURRENT_ASSIGNMENT, beat.member_id, waiting)
            self._revocations_end_ms.pop(beat.member_id, None)
        else:
            self._remove([beat.member_id], now_ms)
        return Struct(
            error_code=0,
            error_message=None,
            member_id=beat.member_id,
            member_epoch=beat.member_epoch,
            heartbeat_interval=0,
            assignment=None,
        )

    # -- time and topics ---------------------------------------------------------------------

    def loaded(self, now_ms: int) -> list[Effect]:
        self.empty_since_ms = now_ms
        for member_id in self.members:
            self._heard_of(member_id, now_ms)
        return self.topics_changed(now_ms)

    def topics_changed(self, now_ms: int) -> list[Effect]:
        if self.members:
            self._retarget(changed=False)
        return self._effects()

    def tick(self, now_ms: int) -> list[Effect]:
        if now_ms < self.wake_at_ms:
            return []
        gone = [
            member_id
            for member_id in self.members
            if self._sessions_end_ms[member_id] <= now_ms
            or self._revocations_end_ms.get(member_id, math.inf) <= now_ms
        ]
        if gone:
            self._remove(gone, now_ms)
        ends = (*self._sessions_end_ms.values(), *self._revocations_end_ms.values())
        self.wake_at_ms = min(ends, default=math.inf)
        return self._effects()

    def _heard_of(self, member_id: str, now_ms: int) -> None:
        ends_ms: float = now_ms + self._settings.consumer_session_timeout_ms
        self._sessions_end_ms[member_id] = ends_ms
        if self.current[member_id].state is MemberState.UNREVOKED:
            timeout_ms = self.members[member_id].rebalance_timeout_ms
            ends_ms = min(
                ends_ms, self._revocations_end_ms.setdefault(member_id, now_ms + timeout_ms)
            )
        else:
            self._revocations_end_ms.pop(member_id, None)
        self.wake_at_ms = min(self.wake_at_ms, ends_ms)

    # -- what the group is to do -------------------------------------------------------------

    def _remove(self, member_ids: Iterable[str], now_ms: int) -> None:
        self.empty_since_ms = now_ms
        for member_id in member_ids:
            self._write_removal(member_id)
        self._retarget(changed=True)

    def _write_removal(self, member_id: str) -> None:
        for kind in MEMBER_KINDS:
            self._write(kind, member_id, None)
        self._sessions_end_ms.pop(member_id, None)
        self._revocations_end_ms.pop(member_id, None)

    def _retarget(self, *, changed: bool) -> None:
        """Make a new target if members, subscriptions or the topics are not as they were."""
        names = self._subscriptions.names(self.members)
        wanted = {
            name: facts
            for name in sorted(set[str]().union(*names.values()))
            if (facts := self._topics.find(name)) is not None
        }
        metadata_hash = _hash(wanted.values())
        if not changed and metadata_hash == self.metadata_hash:
            return
        epoch = self.group_epoch + 1
        self._write(Kind.GROUP_METADATA, "", GroupMetadata(epoch, metadata_hash))
        # A static member keeps its place in the order when it comes back.
        order = sorted(names, key=lambda it: (self.members[it].instance_id or it, it))
        target = ASSIGNORS[self.assignor](
            {it: {wanted[name].topic_id for name in names[it] & wanted.keys()} for it in order},
            {facts.topic_id: facts.partition_count for facts in wanted.values()},
            self.target,
        )
        for member_id, assignment in target.items():
            if assignment != self.target.get(member_id):
                self._write(Kind.TARGET_MEMBER, member_id, assignment)
        self._write(Kind.TARGET_METADATA, "", epoch)


def _hash(topics: Iterable[TopicFacts]) -> int:
    digest = hashlib.blake2b(digest_size=8)
    for name, topic_id, partition_count in topics:
        digest.update(f"{name}\n{partition_count}\n".encode() + topic_id)
    return int.from_bytes(digest.digest(), signed=True)
