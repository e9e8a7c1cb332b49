"""A group of the classic protocol: members meet, one of them assigns, all learn what is theirs.

A *generation* begins when all members have joined anew: everybody is told who leads, the leader
is told of everybody, and what it then assigns is stored before anybody hears of it. A generation
is stored when it begins, so that no two have the same number whatever happens in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sapwood.coordinator.classic_member import (
    Join,
    Member,
    from_stored,
    select_protocol,
    subscribed_topics,
)
from sapwood.coordinator.classic_words import (
    MAY_FOLLOW,
    IllegalTransition,
    State,
    joined,
    refused_join,
    refused_sync,
    synced,
)
from sapwood.coordinator.effects import Answer, Append, Effect
from sapwood.coordinator.group import GroupSettings
from sapwood.coordinator.group_records import group_key, group_value
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError

CONSUMER = "consumer"
"""The protocol type whose metadata are subscriptions, and whose group is one of consumers."""
MAX_BYTES = 16 << 20
"""Of what all members of a group tell each other."""


class ClassicGroup:
    type = "classic"

    def __init__(self, group_id: str, settings: GroupSettings) -> None:
        self.group_id = group_id
        self.generation = 0
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self._settings = settings
        self._phase = State.EMPTY
        self._protocol_type = ""
        self._since_ms = 0
        self._instances: dict[str, str] = {}
        self._pending: dict[str, float] = {}
        """Member ids that were given out and not used yet, and until when they may be."""
        self._unsynced: set[str] = set()
        """Members of this generation that haven't asked for their assignment yet."""
        self._deadline_ms = float("inf")
        """Of joining, or of asking for assignments."""
        self._initial_left_ms = -1.0
        """For how much longer a new group may wait for more members; -1: it isn't new."""
        self._has_new_member = False
        self._effects: list[Effect] = []

    # -- questions ---------------------------------------------------------------------------

    @property
    def state(self) -> str:
        return self._phase.value

    @property
    def protocol_type(self) -> str:
        return self._protocol_type

    @property
    def is_empty(self) -> bool:
        return self._phase is State.EMPTY

    @property
    def is_blank(self) -> bool:
        """Known by its positions alone: its members, if any, assign partitions themselves."""
        return self.is_empty and self.generation == 0 and not self._pending

    @property
    def empty_since_ms(self) -> int:
        return self._since_ms

    @property
    def wake_at_ms(self) -> float:
        sessions = [it.deadline_ms for it in self.members.values() if not it.is_kept_waiting]
        return min([self._deadline_ms, *sessions, *self._pending.values()])

    def subscribes_to(self, topic: str) -> bool:
        if self._protocol_type != CONSUMER or self.protocol is None:
            return not self.is_empty
        for member in self.members.values():
            topics = subscribed_topics(member.metadata(self.protocol))
            if topics is None or topic in topics:
                return True
        return False

    def describe(self) -> Struct:
        protocol = self.protocol if self._phase is State.STABLE else None
        return Struct(
            error_code=0,
            error_message=None,
            group_id=self.group_id,
            group_state=self.state,
            protocol_type=self._protocol_type,
            protocol_data=protocol or "",
            members=[it.describe(protocol) for it in self.members.values()],
        )

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        now_ms: int,
        *,
        transactional: bool,
    ) -> None:
        if epoch < 0 and self.is_empty:
            return  # from whoever assigns partitions itself, or an administrator
        if epoch >= 0 or member_id or instance_id is not None:
            member = self._member(member_id, instance_id)
            self._check_generation(epoch)
            self._heard_of(member, now_ms)
        elif not transactional:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, "The group has members: only they may commit"
            )
        if self._phase is State.COMPLETING and not transactional:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "Ask for the new assignment first")

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Everybody may read the positions of a classic group."""

    # -- joining -----------------------------------------------------------------------------

    def join(self, token: object, join: Join, now_ms: int) -> list[Effect]:
        if join.member_id in self._pending and join.instance_id is None:
            self._check_protocols(join)
            del self._pending[join.member_id]
            self._add(token, join, join.member_id, now_ms)
        elif join.member_id:
            self._join_again(token, join, now_ms)
        else:
            self._join_first(token, join, now_ms)
        return self._taken()

    def _join_first(self, token: object, join: Join, now_ms: int) -> None:
        self._check_protocols(join)
        if join.instance_id in self._instances:
            self._replace(token, join, now_ms)
            return
        if len(self.members) + len(self._pending) >= self._settings.max_size:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"Group {self.group_id!r} has {self._settings.max_size} members already",
            )
        if join.instance_id is None and join.requires_member_id:
            self._pending[join.new_member_id] = now_ms + join.session_timeout_ms
            self._refuse_join(token, ErrorCode.MEMBER_ID_REQUIRED, join.new_member_id)
            return
        self._add(token, join, join.new_member_id, now_ms)

    def _join_again(self, token: object, join: Join, now_ms: int) -> None:
        member = self._member(join.member_id, join.instance_id)
        self._check_protocols(join)
        is_same = member.protocols == join.protocols
        is_leader = member.member_id == self.leader
        # In a stable group a leader that joins again has noticed something, such as a new topic.
        if is_same and (
            self._phase is State.COMPLETING or (self._phase is State.STABLE and not is_leader)
        ):
            self._heard_of(member, now_ms)
            self._answer_join(token, member)
            return
        self._update(member, token, join, now_ms)
        self._rebalance(now_ms)

    def _add(self, token: object, join: Join, member_id: str, now_ms: int) -> None:
        member = Member(
            member_id,
            join.instance_id,
            join.client_id,
            join.client_host,
            join.session_timeout_ms,
            join.rebalance_timeout_ms,
            join.protocols,
            is_new=True,
            deadline_ms=now_ms + self._settings.new_member_join_timeout_ms,
            joining=token,
        )
        if not self.members:
            self._protocol_type = join.protocol_type
        self.members[member_id] = member
        if join.instance_id is not None:
            self._instances[join.instance_id] = member_id
        self.leader = self.leader or member_id
        self._has_new_member = True
        self._rebalance(now_ms)

    def _update(self, member: Member, token: object, join: Join, now_ms: int) -> None:
        if member.joining is not None:  # asked twice: the earlier one is not waited for any more
            self._refuse_join(member.joining, ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
        member.protocols = join.protocols
        member.session_timeout_ms = join.session_timeout_ms
        member.rebalance_timeout_ms = join.rebalance_timeout_ms
        member.client_id, member.client_host = join.client_id, join.client_host
        member.joining = token
        self._heard_of(member, now_ms)

    def _replace(self, token: object, join: Join, now_ms: int) -> None:
        """A static member is back, with an id of its own: the one that it had is fenced."""
        old_id = self._instances[str(join.instance_id)]
        member = self.members[old_id]
        self._fail_member(member, ErrorCode.FENCED_INSTANCE_ID)
        member.member_id = join.new_member_id
        self.members = {it.member_id: it for it in self._listed}  # each keeps its place
        self._instances[str(join.instance_id)] = member.member_id
        was_leader = self.leader == old_id
        if was_leader:
            self.leader = member.member_id
        self._unsynced.discard(old_id)
        self._update(member, token, join, now_ms)
        if self._phase is not State.STABLE or select_protocol(self._listed) != self.protocol:
            self._rebalance(now_ms)
            return
        # It goes on with what it had, and nobody else need notice. A leader that is back must not
        # assign anew what others go on using: one that can skip that is told to, another one is
        # told that somebody else leads.
        member.joining = None
        skips = was_leader and join.may_skip_assignment
        leader = old_id if was_leader and not skips else str(self.leader)
        facts = self.generation, self._protocol_type, self.protocol, leader
        self._append_group()
        message = joined(member, *facts, self._listed if skips else [], skip_assignment=skips)
        self._effects.append(Answer(token, message))

    def _check_protocols(self, join: Join) -> None:
        fits = bool(join.protocol_type) and bool(join.protocols)
        if fits and self.members:
            known = [{name for name, _ in it.protocols} for it in self.members.values()]
            common = set.intersection(*known)
            fits = join.protocol_type == self._protocol_type and any(
                name in common for name, _ in join.protocols
            )
        if not fits:
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                "The group's members have no assignor in common with this one",
            )
        size = sum(len(it) for member in self.members.values() for _, it in member.protocols)
        if size + join.size_bytes > MAX_BYTES:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The members of group {self.group_id!r} have {MAX_BYTES} bytes for their metadata",
            )

    # -- a new generation --------------------------------------------------------------------

    def _rebalance(self, now_ms: int) -> None:
        """Have everybody join anew, unless that is under way already."""
        if self._phase is not State.PREPARING:
            for member in self.members.values():
                if member.syncing is not None:
                    self._answer_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
            self._unsynced.clear()
            patience_ms = self._longest_rebalance_ms
            self._initial_left_ms = -1.0
            if self.is_empty:
                delay_ms = min(self._settings.initial_rebalance_delay_ms, patience_ms)
                self._initial_left_ms = max(0.0, patience_ms - delay_ms)
                patience_ms = delay_ms
                self._has_new_member = False
            self._deadline_ms = now_ms + patience_ms
            self._turn(State.PREPARING, now_ms)
        self._maybe_begin(now_ms)

    def _maybe_begin(self, now_ms: int) -> None:
        if (
            self._phase is State.PREPARING
            and (self._initial_left_ms < 0 or not self.members)
            and not self._pending
            and all(it.joining is not None for it in self.members.values())
        ):
            self._begin(now_ms)

    def _begin(self, now_ms: int) -> None:
        """A generation of those who have joined; static ones are in it until their session ends."""
        for member in self._listed:
            if member.joining is None and member.instance_id is None:
                self._forget(member)
        joined = [it for it in self.members.values() if it.joining is not None]
        if self.members and not joined:
            self._deadline_ms = now_ms + self._longest_rebalance_ms
            return
        self.generation += 1
        self._initial_left_ms = -1.0
        self._deadline_ms = float("inf")
        if not joined:
            self.protocol = self.leader = None
            self._turn(State.EMPTY, now_ms)
            self._append_group()
            return
        if self.leader not in [it.member_id for it in joined]:
            self.leader = joined[0].member_id
        self.protocol = select_protocol(self._listed)
        self._turn(State.COMPLETING, now_ms)
        self._deadline_ms = now_ms + self._longest_rebalance_ms
        self._unsynced = set(self.members)
        for member in self.members.values():
            member.assignment = b""
            member.is_new = False
            self._heard_of(member, now_ms)
        self._append_group()
        for member in joined:
            token, member.joining = member.joining, None
            self._answer_join(token, member)

    # -- what belongs to whom ----------------------------------------------------------------

    def sync(
        self, token: object, message: Struct, assignments: Mapping[str, bytes], now_ms: int
    ) -> list[Effect]:
        member = self._member(message.member_id, getattr(message, "group_instance_id", None))
        self._check_generation(message.generation_id)
        for told, own in (
            (getattr(message, "protocol_type", None), self._protocol_type),
            (getattr(message, "protocol_name", None), self.protocol),
        ):
            if told is not None and own is not None and told != own:
                raise KafkaError(
                    ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"The group's is {own!r}, not {told!r}"
                )
        if self._phase is State.PREPARING:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "Join the group again")
        if sum(map(len, assignments.values())) > MAX_BYTES:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Assignments may have {MAX_BYTES} bytes in all"
            )
        self._unsynced.discard(member.member_id)
        self._heard_of(member, now_ms)
        if member.syncing is not None:
            self._answer_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
        member.syncing = token
        if self._phase is State.COMPLETING and member.member_id == self.leader:
            for each in self.members.values():
                each.assignment = assignments.get(each.member_id, b"")
            self._turn(State.STABLE, now_ms)
            self._append_group()
        if self._phase is State.STABLE:
            for each in self.members.values():
                if each.syncing is not None:
                    self._heard_of(each, now_ms)
                    self._answer_sync(each, ErrorCode.NONE)
            if not self._unsynced:
                self._deadline_ms = float("inf")
        return self._taken()

    def heartbeat(self, token: object, message: Struct, now_ms: int) -> list[Effect]:
        member = self._member(message.member_id, getattr(message, "group_instance_id", None))
        self._check_generation(message.generation_id)
        self._heard_of(member, now_ms)
        rebalances = self._phase is State.PREPARING
        code = ErrorCode.REBALANCE_IN_PROGRESS if rebalances else ErrorCode.NONE
        return [Answer(token, Struct(error_code=int(code)))]

    def leave(self, token: object, leaving: Sequence[Struct], now_ms: int) -> list[Effect]:
        results = []
        count = len(self.members)
        for each in leaving:
            instance_id = getattr(each, "group_instance_id", None)
            code = ErrorCode.NONE
            try:
                if each.member_id in self._pending and instance_id is None:
                    del self._pending[each.member_id]
                elif instance_id in self._instances and not each.member_id:
                    # An administrator knows it by this name only.
                    self._forget(self.members[self._instances[instance_id]])
                else:
                    self._forget(self._member(each.member_id, instance_id))
            except KafkaError as error:
                code = error.code
            results.append(
                Struct(
                    member_id=each.member_id, group_instance_id=instance_id, error_code=int(code)
                )
            )
        if len(self.members) < count or self._phase is State.PREPARING:
            self._lost_somebody(now_ms)
        self._effects.append(Answer(token, Struct(error_code=0, members=results)))
        return self._taken()

    # -- time --------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> list[Effect]:
        self._pending = {it: until for it, until in self._pending.items() if until > now_ms}
        self._expire(
            [it for it in self._listed if it.deadline_ms <= now_ms and not it.is_kept_waiting],
            now_ms,
        )
        if self._deadline_ms <= now_ms:
            if self._phase is State.PREPARING:
                self._joining_is_over(now_ms)
            else:
                self._deadline_ms = float("inf")
                self._expire([it for it in self._listed if it.member_id in self._unsynced], now_ms)
        return self._taken()

    def _expire(self, late: list[Member], now_ms: int) -> None:
        for member in late:
            self._forget(member)
        if late or self._phase is State.PREPARING:
            self._lost_somebody(now_ms)

    def _joining_is_over(self, now_ms: int) -> None:
        if self._initial_left_ms > 0 and self._has_new_member:
            # More came while a new group waited for its first members: it waits once more.
            delay_ms = min(float(self._settings.initial_rebalance_delay_ms), self._initial_left_ms)
            self._initial_left_ms -= delay_ms
            self._has_new_member = False
            self._deadline_ms = now_ms + delay_ms
        else:
            self._begin(now_ms)

    def loaded(self, now_ms: int) -> list[Effect]:
        for member in self.members.values():
            self._heard_of(member, now_ms)
        if self._phase is State.COMPLETING:
            self._unsynced = set(self.members)
            self._deadline_ms = now_ms + self._longest_rebalance_ms
        return []

    def topics_changed(self, now_ms: int) -> list[Effect]:
        """Members of a classic group look after that themselves."""
        return []

    # -- the log -----------------------------------------------------------------------------

    def replay(self, value: Struct) -> None:
        self._protocol_type = value.protocol_type
        self.generation = value.generation
        self.protocol, self.leader = value.protocol, value.leader
        self._since_ms = value.current_state_timestamp
        members = [from_stored(it, value.protocol) for it in value.members]
        self.members = {it.member_id: it for it in members}
        self._instances = {
            it.instance_id: it.member_id for it in members if it.instance_id is not None
        }
        self._phase = State.EMPTY
        if members:
            # A generation that began has no assignments yet.
            is_assigned = any(it.assignment for it in members)
            self._phase = State.STABLE if is_assigned else State.COMPLETING

    def tombstones(self) -> list[tuple[bytes, None]]:
        return [(group_key.encode(group=self.group_id), None)]

    def _append_group(self) -> None:
        value = group_value.encode(
            protocol_type=self._protocol_type,
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            current_state_timestamp=self._since_ms,
            members=[it.stored(self.protocol) for it in self.members.values()],
        )
        self._effects.append(Append([(group_key.encode(group=self.group_id), value)]))

    # -- small parts -------------------------------------------------------------------------

    @property
    def _listed(self) -> list[Member]:
        return list(self.members.values())

    @property
    def _longest_rebalance_ms(self) -> int:
        return max((it.rebalance_timeout_ms for it in self.members.values()), default=0)

    def _turn(self, phase: State, now_ms: int) -> None:
        if phase not in MAY_FOLLOW[self._phase]:
            raise IllegalTransition(f"{self.group_id!r}: {self._phase.value} → {phase.value}")
        self._phase = phase
        self._since_ms = now_ms

    def _member(self, member_id: str, instance_id: str | None) -> Member:
        if instance_id is not None:
            known = self._instances.get(instance_id)
            if known is not None and known != member_id:
                raise KafkaError(
                    ErrorCode.FENCED_INSTANCE_ID,
                    f"Another member has taken the place of {instance_id!r}",
                )
        member = self.members.get(member_id)
        if member is None or (instance_id is not None and member.instance_id != instance_id):
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"{member_id[:300]!r} is not a member of group {self.group_id!r}",
            )
        return member

    def _check_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise KafkaError(
                ErrorCode.ILLEGAL_GENERATION,
                f"Group {self.group_id!r} is in generation {self.generation}, not {generation}",
            )

    def _heard_of(self, member: Member, now_ms: int) -> None:
        timeout_ms = member.session_timeout_ms
        if member.is_new:
            timeout_ms = self._settings.new_member_join_timeout_ms
        member.deadline_ms = now_ms + timeout_ms

    def _forget(self, member: Member) -> None:
        self._fail_member(member, ErrorCode.UNKNOWN_MEMBER_ID)
        del self.members[member.member_id]
        self._unsynced.discard(member.member_id)
        if member.instance_id is not None:
            del self._instances[member.instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def _lost_somebody(self, now_ms: int) -> None:
        if self._phase in (State.STABLE, State.COMPLETING):
            self._rebalance(now_ms)
        else:
            self._maybe_begin(now_ms)

    def _fail_member(self, member: Member, code: ErrorCode) -> None:
        if member.joining is not None:
            self._refuse_join(member.joining, code, member.member_id)
            member.joining = None
        if member.syncing is not None:
            self._answer_sync(member, code)

    def _answer_join(self, token: object, member: Member) -> None:
        listed = self._listed if member.member_id == self.leader else []
        leader = self.leader or ""
        message = joined(
            member, self.generation, self._protocol_type, self.protocol, leader, listed
        )
        self._effects.append(Answer(token, message))

    def _refuse_join(self, token: object, code: ErrorCode, member_id: str) -> None:
        self._effects.append(Answer(token, refused_join(code, member_id)))

    def _answer_sync(self, member: Member, code: ErrorCode) -> None:
        token, member.syncing = member.syncing, None
        message = refused_sync(code)
        if code == ErrorCode.NONE:
            message = synced(self._protocol_type, self.protocol, member.assignment)
        self._effects.append(Answer(token, message))

    def _taken(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects
