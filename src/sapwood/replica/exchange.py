"""All that this node's groups say to other nodes: links, votes, announcements, hand-overs.

Per pair of nodes everything goes together: one session for all groups that one follows at the
other, one message for all votes of a moment. So groups that have nothing to say cost nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from sapwood.raft import (
    NOBODY,
    Elected,
    Follower,
    Group,
    Leader,
    Position,
    Timing,
    Vote,
    Voter,
)
from sapwood.replica.asking import MOST_GROUPS, Asking
from sapwood.replica.clock import NodeClock
from sapwood.replica.followers import FollowerSession
from sapwood.replica.following import LeaderLink
from sapwood.replica.leaders import Leadership, LeadersTable
from sapwood.replica.partition import GroupKey, Partition
from sapwood.replica.patience import Patience
from sapwood.replica.timers import Timers
from sapwood.server.link import PeerUnreachable
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

ATTENTION_S = 0.1
SWEEP_S = 2.0
SETTLED_S = 3.0
"""How long a link must have been up before leadership is handed back along it."""
MOST_HANDED_BACK = 64
"""In one sweep: a node that comes back isn't to be overrun."""
RETRY_S = 0.25
CLOSING_S = 5.0
"""How long followers go on to promise times after somebody has asked for closed ones."""
OPENING_S = 0.05
"""How long a vote waits for a replica that is not here yet."""


class Peers(Protocol):
    async def request(
        self, node: int, api: Api, message: Struct, *, timeout_s: float, data: bool = False
    ) -> Struct: ...


@dataclass(slots=True)
class _Audience:
    """What another node has yet to hear about leaders."""

    pending: dict[GroupKey, None] = field(default_factory=dict)
    full: bool = True
    wants: bool = True
    task: asyncio.Task[None] | None = None


class Exchange:
    def __init__(
        self,
        me: int,
        peers: Peers,
        look_up: Callable[[GroupKey], Partition | None],
        apply: Callable[[Partition, Struct], Awaitable[None] | None],
        flush: Callable[[], asyncio.Future[None]],
        *,
        clock: NodeClock,
        entropy: Callable[[int], bytes],
        timing: Timing,
        heartbeat_s: float,
    ) -> None:
        self.leaders = LeadersTable()
        self._me = me
        self._peers = peers
        self._look_up = look_up
        self._apply = apply
        self._flush = flush
        self._clock = clock
        self._hybrid_now, self._observe = clock.now, clock.observe
        clock.on_reserved = self._promised
        self._closing_until = float("-inf")
        self._promises: asyncio.Future[None] | None = None
        self._entropy = entropy
        self._timing = timing
        self._heartbeat_s = heartbeat_s
        self._loop = asyncio.get_running_loop()
        self._sessions: dict[int, FollowerSession] = {}
        self._session_since: dict[int, float] = {}
        self._links: dict[int, LeaderLink] = {}
        self._patience: dict[int, Patience] = {}
        self._followed: dict[GroupKey, int] = {}
        self._led: dict[GroupKey, Partition] = {}
        self._told: dict[GroupKey, tuple[int, ...]] = {}
        self._attention: dict[GroupKey, Partition] = {}
        self._asking = Asking(self._request_votes, flush, self._start)
        self._timers = Timers(self._asking.is_waiting)
        self._awaited: dict[GroupKey, asyncio.Event] = {}
        self._audiences: dict[int, _Audience] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    # -- questions ---------------------------------------------------------------------------

    @property
    def led(self) -> Iterable[Partition]:
        return self._led.values()

    def heard_of(self, node: int) -> float:
        """When the node, as a follower of anything here, was heard of last."""
        session = self._sessions.get(node)
        return session.heard_at if session is not None else float("-inf")

    def silent_for_s(self, node: int) -> float:
        """For how long the node, as a leader of anything here, has not been heard of."""
        link = self._links.get(node)
        return link.silent_for_s if link is not None else 0.0

    def close_times(self, wanted: int) -> asyncio.Future[None]:
        """Have followers promise times, at once if they haven't promised this one yet; done when
        there is any news of that."""
        self._closing_until = self._loop.time() + CLOSING_S
        self._clock.reserve()
        for session in self._sessions.values():
            if session.promised < wanted:
                session.hurry()
        if self._promises is None or self._promises.done():
            self._promises = self._loop.create_future()
        return self._promises

    def _promised(self) -> None:
        if self._promises is not None and not self._promises.done():
            self._promises.set_result(None)

    def _is_closing(self) -> bool:
        return self._loop.time() < self._closing_until

    # -- from the partitions (their host's network half) -------------------------------------

    def role_changed(self, partition: Partition) -> None:
        key, role = partition.key, partition.group.role
        leader = role.leader if isinstance(role, Follower) else NOBODY
        followed = self._followed.get(key, NOBODY)
        if followed not in (NOBODY, leader):
            self._links[followed].unfollow(partition)
        if leader != NOBODY:
            self._followed[key] = leader
            self._link(leader).follow(partition)
            known = self.leaders.get(key)
            if known is None or known.epoch < partition.group.term:
                voters = partition.voters
                self._note(key, Leadership(partition.group.term, leader, voters, (leader,)))
        else:
            self._followed.pop(key, None)
        if isinstance(role, Elected):
            self._led[key] = partition
            self._attention[key] = partition
            self.announce(partition)
        elif self._led.pop(key, None) is not None:
            self._told.pop(key, None)
            for session in list(self._sessions.values()):
                session.stepped_down(partition)
        self._timers.set(partition)

    def progressed(self, partition: Partition, *, appended: bool) -> None:
        key = partition.key
        if key in self._led:
            for session in self._sessions.values():
                session.wake(partition, urgent=appended or partition.hurries)
        elif (leader := self._followed.get(key)) is not None:
            self._links[leader].progressed(partition)

    def ask(self, partition: Partition, vote: Vote, nodes: tuple[int, ...]) -> None:
        self._asking.ask(partition, vote, nodes)

    def hand_over(self, partition: Partition, node: int, epoch: int) -> None:
        group = Struct(topic_id=partition.topic_id, partition=partition.index, epoch=epoch)
        message = Struct(hlc=self._hybrid_now(), node_id=self._me, groups=[group])
        self._start(self._tell(node, Api.TRANSFER, message))

    def attend(self, partition: Partition) -> None:
        """Its voters may have to change."""
        if partition.key in self._led:
            self._attention[partition.key] = partition

    def gone(self, partition: Partition) -> None:
        """It is offline, or deleted: nobody may take it for alive because this node is."""
        key = partition.key
        followed = self._followed.pop(key, None)
        if followed is not None:
            self._links[followed].unfollow(partition)
        self._timers.drop(partition)
        self._attention.pop(key, None)
        if self._led.pop(key, None) is not None:
            for session in list(self._sessions.values()):
                session.stepped_down(partition)

    # -- from other nodes --------------------------------------------------------------------

    def fetched(self, node: int, message: Struct) -> asyncio.Future[Struct]:
        self._observe(message.hlc)
        self._patience_with(node).heard(self._loop.time(), first=not message.sequence)
        session = self._sessions.get(node)
        if session is None or session.session_id != message.session_id:
            if message.sequence != 0:
                raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "there is no such session")
            if session is not None:
                session.lose()
            session = self._sessions[node] = FollowerSession(
                node,
                message.session_id,
                self._look_up,
                self._hybrid_now,
                self._is_closing,
                self._heartbeat_s,
                self._session_lost,
                self.attend,
            )
            self._session_since[node] = self._loop.time()
        answer = session.request(message)
        if message.promised >= 0:
            self._promised()
        return answer

    async def voted(self, node: int, message: Struct) -> Struct:
        self._observe(message.hlc)
        await self._await_groups([(it.topic_id, it.partition) for it in message.groups])
        now = self._loop.time()
        groups = []
        for it in message.groups:
            partition = self._look_up((it.topic_id, it.partition))
            if partition is None:
                continue
            position = Position(it.last_epoch, it.end_offset)
            vote = Vote(it.term, Voter(node, it.incarnation), position, it.pre_vote)
            answer = partition.tell(Group.vote_asked, now, vote)
            if answer is not None:
                groups.append(
                    Struct(
                        topic_id=it.topic_id,
                        partition=it.partition,
                        term=answer.term,
                        granted=answer.granted,
                        incarnation=answer.voter.incarnation,
                        leader=answer.leader,
                    )
                )
        await self._flush()
        return Struct(hlc=self._hybrid_now(), groups=groups)

    async def _await_groups(self, keys: list[GroupKey]) -> None:
        """A new topic's first leader may stand before everybody has heard of the topic."""
        missing = [key for key in keys if self._look_up(key) is None]
        events = [self._awaited.setdefault(key, asyncio.Event()) for key in missing]
        try:
            async with asyncio.timeout(OPENING_S):
                for event in events:
                    await event.wait()
        except TimeoutError:
            for key in missing:
                self._awaited.pop(key, None)

    def announced(self, node: int, message: Struct) -> Struct:
        self._observe(message.hlc)
        now = self._loop.time()
        for it in message.leaders:
            key = (it.topic_id, it.partition)
            voters = tuple(Voter(voter.node, voter.incarnation) for voter in it.voters)
            self._note(key, Leadership(it.epoch, node, voters, tuple(it.in_sync)))
            partition = self._look_up(key)
            if partition is not None:
                partition.tell(Group.announced, now, node, it.epoch)
        if message.wants:
            audience = self._audiences.setdefault(node, _Audience())
            audience.full = True
            self._speak(node, audience)
        return Struct(hlc=self._hybrid_now())

    def transferred(self, node: int, message: Struct) -> Struct:
        self._observe(message.hlc)
        now = self._loop.time()
        for it in message.groups:
            partition = self._look_up((it.topic_id, it.partition))
            if partition is not None:
                partition.tell(Group.handed, now, it.epoch)
        return Struct(hlc=self._hybrid_now())

    # -- life --------------------------------------------------------------------------------

    def start(self) -> None:
        self._start(self._attend())
        self._start(self._sweep())

    def set_members(self, nodes: Iterable[int]) -> None:
        """Who is to hear about leaders."""
        wanted = {node: None for node in nodes if node != self._me}
        for node in [node for node in self._audiences if node not in wanted]:
            audience = self._audiences.pop(node)
            if audience.task is not None:
                audience.task.cancel()
        for node in wanted:
            if node not in self._audiences:
                audience = self._audiences[node] = _Audience()
                self._speak(node, audience)

    def know_leader(self, partition: Partition) -> None:
        """For a replica that was just opened: somebody may have told before it was there."""
        known = self.leaders.get(partition.key)
        if known is not None and known.leader != self._me:
            now = self._loop.time()
            partition.tell(Group.announced, now, known.leader, known.epoch)
        self._timers.set(partition)
        if (awaited := self._awaited.pop(partition.key, None)) is not None:
            awaited.set()

    async def resign(self, within_s: float) -> None:
        """Hand all groups to others, before this node goes."""
        deadline = self._loop.time() + within_s
        while self._loop.time() < deadline:
            left = 0
            for partition in list(self._led.values()):
                others = [it for it in partition.group.in_sync(self._loop.time()) if it != self._me]
                if others and len(partition.voters) > 1:
                    left += 1
                    first = partition.index % len(others)
                    for node in others[first:] + others[:first]:
                        if self._give_up(partition, node):
                            break
            if not left:
                return
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        self._is_closed = True
        for link in self._links.values():
            link.close()
        for session in list(self._sessions.values()):
            session.lose()
        self._timers.close()
        tasks = [*self._tasks, *(it.task for it in self._audiences.values() if it.task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- what is due by itself ---------------------------------------------------------------

    async def _attend(self) -> None:
        while True:
            before = self._loop.time()
            await asyncio.sleep(ATTENTION_S)
            now = self._loop.time()
            was_held_up = now - before > 3 * ATTENTION_S
            for patience in self._patience.values():
                patience.was_late(now - before, now)
            # Whoever was held up itself first has to read what others have said meanwhile.
            for session in [] if was_held_up else list(self._sessions.values()):
                if session.turned_silent(now - self._timing.silence_s):
                    for member in list(session.members.values()):
                        member.partition.tell(Group.tick, now)
                        self._tell_in_sync(member.partition, now)
            for number, (key, partition) in enumerate(list(self._attention.items())):
                if number % MOST_GROUPS == MOST_GROUPS - 1:
                    await asyncio.sleep(0)
                if not self._step_voters(partition, now):
                    self._attention.pop(key, None)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            now = self._loop.time()
            handed_back = 0
            for number, partition in enumerate(list(self._led.values())):
                if number % MOST_GROUPS == MOST_GROUPS - 1:
                    await asyncio.sleep(0)
                partition.tell(Group.tick, now)
                self._tell_in_sync(partition, now)
                if self._is_on_the_move(partition):
                    self._attention[partition.key] = partition
                if handed_back < MOST_HANDED_BACK and self._hand_back(partition, now):
                    handed_back += 1

    def _step_voters(self, partition: Partition, now: float) -> bool:
        """One step towards the target; whether there is more to do."""
        if partition.key not in self._led or not partition.target:
            return False
        target = partition.target
        partition.tell(Group.step_towards, partition.target, now)
        if not partition.leads:
            return False
        self._tell_in_sync(partition, now)
        nodes = {it.node for it in partition.voters}
        if self._me not in target and nodes >= set(target):
            for node in target:
                if self._give_up(partition, node):
                    break
            return True
        return self._is_on_the_move(partition)

    def _is_on_the_move(self, partition: Partition) -> bool:
        nodes = {it.node for it in partition.voters}
        return nodes != set(partition.target) or partition.group.is_being_joined

    def _hand_back(self, partition: Partition, now: float) -> bool:
        """To the preferred leader, once it has been there for a while."""
        if not partition.target or partition.target[0] == self._me:
            return False
        node = partition.target[0]
        since = self._session_since.get(node)
        if since is None or now - since < SETTLED_S or node not in partition.group.in_sync(now):
            return False
        return self._give_up(partition, node)

    def _give_up(self, partition: Partition, node: int) -> bool:
        now = self._loop.time()
        given = bool(partition.tell(Group.hand_over, node, now))
        self._timers.set(partition)
        return given

    # -- announcements -----------------------------------------------------------------------

    def announce(self, partition: Partition) -> None:
        group = partition.group
        in_sync = tuple(group.in_sync(self._loop.time()))
        self._told[partition.key] = in_sync
        self._note(partition.key, Leadership(group.term, self._me, partition.voters, in_sync))
        for node, audience in self._audiences.items():
            audience.pending[partition.key] = None
            self._speak(node, audience)

    def _tell_in_sync(self, partition: Partition, now: float) -> None:
        if not partition.leads:
            return
        known = self.leaders.get(partition.key)
        in_sync = tuple(partition.group.in_sync(now))
        if self._told.get(partition.key) != in_sync or (
            known is not None and known.voters != partition.voters
        ):
            self.announce(partition)

    def _note(self, key: GroupKey, leadership: Leadership) -> None:
        self.leaders.note(key, leadership)

    def _speak(self, node: int, audience: _Audience) -> None:
        if audience.task is None and not self._is_closed:
            audience.task = self._loop.create_task(self._address(node, audience))

    async def _address(self, node: int, audience: _Audience) -> None:
        try:
            while audience.full or audience.pending:
                await asyncio.sleep(0)  # what changes in the same turn goes along
                if audience.full:
                    audience.pending = dict.fromkeys(self._led)
                keys = list(itertools.islice(audience.pending, MOST_GROUPS))
                for key in keys:
                    del audience.pending[key]
                full, wants = audience.full, audience.wants
                audience.full = audience.wants = False
                message = Struct(
                    hlc=self._hybrid_now(),
                    node_id=self._me,
                    full=full and not audience.pending,
                    wants=wants,
                    leaders=[self._announcement(self._led[it]) for it in keys if it in self._led],
                )
                try:
                    # A single voter leads without asking anybody. Were its term forgotten, it could
                    # lead in it once more, with other records at the same places.
                    await self._flush()
                    answer = await self._peers.request(
                        node, Api.ANNOUNCE, message, timeout_s=self._patience_s(node)
                    )
                    self._observe(answer.hlc)
                except (PeerUnreachable, OSError):
                    # It may have heard all the same. If it began anew it wants to know everything.
                    audience.pending = {**dict.fromkeys(keys), **audience.pending}
                    audience.wants |= wants
                    await asyncio.sleep(RETRY_S)
        finally:
            audience.task = None

    def _announcement(self, partition: Partition) -> Struct:
        return Struct(
            topic_id=partition.topic_id,
            partition=partition.index,
            epoch=partition.group.term,
            voters=[Struct(node=it.node, incarnation=it.incarnation) for it in partition.voters],
            in_sync=list(self._told.get(partition.key, ())),
            confirmed=isinstance(partition.group.role, Leader),
        )

    # -- inside ------------------------------------------------------------------------------

    def _link(self, node: int) -> LeaderLink:
        link = self._links.get(node)
        if link is None:
            link = self._links[node] = LeaderLink(
                node,
                self._me,
                self._peers.request,
                new_session_id=lambda: int.from_bytes(self._entropy(7), "big"),
                clock=self._clock,
                patience=self._patience_with(node),
                heartbeat_s=self._heartbeat_s,
                apply=self._apply,
            )
        return link

    def _patience_with(self, node: int) -> Patience:
        patience = self._patience.get(node)
        if patience is None:
            patience = self._patience[node] = Patience(self._timing.silence_s)
        return patience

    def _patience_s(self, node: int) -> float:
        return self._patience_with(node).limit_s(self._loop.time())

    def _session_lost(self, session: FollowerSession) -> None:
        if self._sessions.get(session.node) is session:
            del self._sessions[session.node]
            self._session_since.pop(session.node, None)

    async def _request_votes(self, node: int, groups: list[Struct]) -> list[Struct]:
        message = Struct(hlc=self._hybrid_now(), node_id=self._me, groups=groups)
        try:
            answer = await self._peers.request(
                node, Api.REPLICA_VOTE, message, timeout_s=self._patience_s(node)
            )
        except PeerUnreachable:
            return []
        self._observe(answer.hlc)
        answered: list[Struct] = answer.groups
        return answered

    async def _tell(self, node: int, api: Api, message: Struct) -> None:
        try:
            await self._peers.request(node, api, message, timeout_s=self._timing.silence_s)
        except PeerUnreachable as error:
            logger.debug("node %d was not told: %s", node, error)

    def _start(self, work: Awaitable[None]) -> None:
        if self._is_closed:
            if asyncio.iscoroutine(work):
                work.close()
            return
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a conversation with other nodes failed", exc_info=error)
