"""Members of consumer groups that come, go and die: what one owns it processes, then commits."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence

from sapwood.client.cluster import TopicPartition
from sapwood.client.errors import ClientClosed
from sapwood.client.fetcher import Chunk, Fetcher
from sapwood.client.groups import Committed, Membership
from sapwood.client.offsets import LATEST
from sapwood.client.procedures import Procedure, Wait, wait_for
from sapwood.wire.errors import ErrorCode, KafkaError
from sim.invariants import Invariant, Judges, Sent, Violation
from sim.loop import SimLoop
from sim.seats import ClassicSeat, ConsumerSeat, Seat, Share
from sim.workload import PAUSE_S, Actor, Shape, SimClient, Workload, batches
from sim.world import World

TIMEOUT_MS = 8_000
LIFE_S = 8.0
"""After about so long a member leaves or dies, and comes again as another one."""
WORK_S = 0.05
"""Between the first and the last of what a member does with some records, on average."""
LOOK_MS = 1_000
"""So often at least a member looks whether its time is up."""
WATCH_S = 0.05
WATCH_TIMEOUT_MS = 1_000
LEAVING_SHARE = 0.5
CLASSIC, CONSUMER = "classic", "newer"
"""Groups, each called after its protocol."""
_FENCED = frozenset(
    {
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.GROUP_ID_NOT_FOUND,
    }
)
Place = tuple[str, TopicPartition]
"""A group, and where it reads."""
Question = Callable[[SimClient], Awaitable[None]]


class _StopsTheLoop(Invariant):
    """For judges that clients talk to themselves."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def violated(self, what: str) -> Violation:
        violation = super().violated(what)
        self._loop.fail(violation)
        return violation


class GroupsKeepTheirPlace(_StopsTheLoop):
    """A group processes everything; in one generation a partition has one owner; what somebody
    was told is committed never goes back, and was processed before."""

    def __init__(self, loop: SimLoop) -> None:
        super().__init__(loop)
        self._owners: dict[tuple[Place, int], str] = {}
        self._processed: dict[Place, int] = {}
        self._committed: dict[Place, int] = {}

    def processed(self, place: Place, membership: Membership, first: int, end: int) -> None:
        owner = self._owners.setdefault((place, membership.epoch), membership.member_id)
        if owner != membership.member_id:
            raise self.violated(
                f"{owner} and {membership.member_id} both own {place} in epoch {membership.epoch}"
            )
        known = self._processed.get(place, 0)
        if first > known:
            raise self.violated(f"nobody has processed {place} from {known} to {first}")
        self._processed[place] = max(known, end)

    def known(self) -> Mapping[Place, int]:
        """Whoever asks from now on may not be told less."""
        return dict(self._committed)

    def told(self, who: str, place: Place, offset: int, known: Mapping[Place, int]) -> None:
        if offset < known.get(place, -1):
            raise self.violated(f"{who} found {place} at {offset}, it was at {known[place]}")
        if offset > (done := self._processed.get(place, 0)):
            raise self.violated(f"{who} found {place} at {offset}, only {done} are processed")
        self._committed[place] = max(self._committed.get(place, -1), offset)

    def has_come_to(self, place: Place, end: int) -> bool:
        return min(self._processed.get(place, 0), self._committed.get(place, 0)) >= end


class EndsNeverGoBack(_StopsTheLoop):
    """Where a partition ends, as somebody is told, is behind all that was acknowledged before."""

    def __init__(self, loop: SimLoop) -> None:
        super().__init__(loop)
        self._ends: dict[TopicPartition, int] = {}

    def acknowledged(self, record: Sent) -> None:
        self._saw(record.key, record.offset + 1)

    def _saw(self, key: TopicPartition, end: int) -> None:
        self._ends[key] = max(self._ends.get(key, 0), end)

    def known(self) -> Mapping[TopicPartition, int]:
        return dict(self._ends)

    def told(
        self, who: str, key: TopicPartition, end: int, known: Mapping[TopicPartition, int]
    ) -> None:
        if end < known.get(key, 0):
            raise self.violated(f"{who} was told that {key} ends at {end}, not at {known[key]}")
        self._saw(key, end)


class GroupMember(Actor):
    """One program after another that is a member of a group."""

    def __init__(self, workload: GroupWorkload, name: str, group: str) -> None:
        super().__init__(workload, name)
        self._judge = workload.places
        self._group = group
        self.is_staying = False
        self.is_dismissed = False
        self._lives = 0
        self._task = self.process.spawn(self._live())

    @property
    def has_ended(self) -> bool:
        return self._task.done()

    async def _live(self) -> None:
        while not self.is_dismissed:
            self._lives += 1
            name = f"{self.name}.{self._lives}"
            client = self.client(api_timeout_ms=TIMEOUT_MS, request_timeout_ms=TIMEOUT_MS)
            try:
                seat = await self._sit_down(client, name)
                await client.run(self._work(client, seat, name))
                if self.is_dismissed or self.chance.random() < LEAVING_SHARE:
                    self.world.trace.note(f"{name} leaves")
                    await client.run(seat.leave())
            except (KafkaError, RuntimeError) as error:
                # It may be on its way yet: as this member nothing is sent behind it.
                self.world.trace.note(f"{name} ends: {error}")
            await client.close()
            await self.pause(PAUSE_S)

    async def _sit_down(self, client: SimClient, name: str) -> Seat:
        topics = sorted({topic for topic, _ in self.shape.keys})
        for topic in topics:
            await client.run(wait_for(client.core.await_topic(topic, None, client.now_ms())))
        if self._group == CONSUMER:
            return ConsumerSeat(client, self._group, topics, name)
        seat = ClassicSeat(client, self._group, self.shape.keys)
        self.process.spawn(self._keep(client, seat))
        return seat

    async def _keep(self, client: SimClient, seat: ClassicSeat) -> None:
        with contextlib.suppress(ClientClosed):
            await client.run(seat.keep())

    def _is_over(self, end_ms: float, now_ms: float) -> bool:
        return self.is_dismissed or (now_ms >= end_ms and not self.is_staying)

    def _work(self, client: SimClient, seat: Seat, name: str) -> Procedure[None]:
        core = client.core
        end_ms = client.now_ms() + 1000 * self.chance.expovariate(1 / LIFE_S)
        while not self._is_over(end_ms, client.now_ms()):
            share = seat.share
            owned = sorted(share[1])
            if not owned:
                yield Wait((seat.change(),), client.now_ms() + LOOK_MS)
                continue
            known = self._judge.known()
            asked = core.groups.positions(self._group, owned, client.now_ms())
            found = yield from wait_for(asked)
            for key in owned:
                self._judge.told(name, (self._group, key), found[key].offset, known)
            fetcher = core.fetch({key: max(0, found[key].offset) for key in owned}, {})
            try:
                yield from self._serve(client, seat, share, fetcher, end_ms)
            finally:
                core.stop_fetching(fetcher, client.now_ms())

    def _serve(
        self, client: SimClient, seat: Seat, share: Share, fetcher: Fetcher, end_ms: float
    ) -> Procedure[None]:
        """For as long as the share is the one that it fetches.

        One that was asleep goes on with what it has before it notices anything.
        """
        while seat.share == share:
            if (chunk := fetcher.take()) is not None:
                chunks = [chunk]
                # In the end it hurries: one by one it might never have what three can write.
                while self.is_staying and (chunk := fetcher.take()) is not None:
                    chunks.append(chunk)
                seat.is_busy = True
                yield from self._process(client, seat, chunks)
                seat.is_busy = False
            elif self._is_over(end_ms, client.now_ms()):
                return
            else:
                arrivals = fetcher.arrival(), seat.change()
                yield Wait(arrivals, client.now_ms() + LOOK_MS)

    def _process(self, client: SimClient, seat: Seat, chunks: Sequence[Chunk]) -> Procedure[None]:
        membership, _ = seat.share
        positions: dict[TopicPartition, Committed] = {}
        for chunk in chunks:
            key = chunk.topic, chunk.partition
            for batch in batches(key, chunk.data, chunk.offset):
                self.judges.read(self.name, batch)
            self._judge.processed((self._group, key), membership, chunk.offset, chunk.next_offset)
            positions[key] = Committed(chunk.next_offset, "")
        yield Wait((), client.now_ms() + 1000 * self.chance.expovariate(1 / WORK_S))
        now_ms = client.now_ms()
        try:
            yield from wait_for(
                client.core.groups.commit(self._group, membership, positions, now_ms)
            )
        except KafkaError as error:
            if error.code not in _FENCED:
                raise
            seat.fenced(error.code)
            yield Wait((seat.change(),), client.now_ms() + 1000 * PAUSE_S)
        else:
            for key, position in positions.items():
                self._judge.told(self.name, (self._group, key), position.offset, {})


class Watcher(Actor):
    """Asks over and over where groups have come to, and where partitions end."""

    def __init__(self, workload: GroupWorkload, name: str) -> None:
        super().__init__(workload, name)
        self._places = workload.places
        self._ends = workload.ends
        self._groups = workload.groups
        self.process.spawn(self._watch(self._ask_places))
        self.process.spawn(self._watch(self._ask_ends))

    async def _watch(self, ask: Question) -> None:
        # Whoever leads anew is to be asked before it is settled.
        client = self.client(
            api_timeout_ms=TIMEOUT_MS,
            request_timeout_ms=WATCH_TIMEOUT_MS,
            backoff_ms=5,
            backoff_max_ms=20,
        )
        while True:
            await self.pause(WATCH_S)
            try:
                await ask(client)
            except KafkaError as error:
                self.world.trace.note(f"can't watch: {error}")

    async def _ask_places(self, client: SimClient) -> None:
        group, known = self.chance.choice(self._groups), self._places.known()
        asked = client.core.groups.positions(group, self.shape.keys, client.now_ms())
        for key, found in (await client.run(wait_for(asked))).items():
            self._places.told(self.name, (group, key), found.offset, known)

    async def _ask_ends(self, client: SimClient) -> None:
        known = self._ends.known()
        found = await client.list_offsets(dict.fromkeys(self.shape.keys, LATEST))
        for key, end in found.items():
            self._ends.told(self.name, key, end.offset, known)


class GroupWorkload(Workload):
    """The other clients as well, and groups that read all that they write."""

    def __init__(
        self,
        world: World,
        judges: Judges,
        bootstrap: str,
        shape: Shape,
        groups: Sequence[str],
        ends: EndsNeverGoBack,
    ) -> None:
        super().__init__(world, judges, bootstrap, shape)
        self.groups = groups
        self.ends = ends
        self.places = GroupsKeepTheirPlace(world.loop)
        self.members: list[GroupMember] = []
        self.watchers: list[Watcher] = []

    def start(self) -> None:
        super().start()
        self.members = [
            GroupMember(self, f"{group}{n}", group) for group in self.groups for n in range(3)
        ]
        self.watchers = [Watcher(self, "watcher0")]

    @property
    def actors(self) -> list[Actor]:
        return [*super().actors, *self.members, *self.watchers]

    def stop_producing(self) -> None:
        super().stop_producing()
        for member in self.members:
            member.is_staying = True

    def dismiss(self) -> None:
        """All members leave for good."""
        for member in self.members:
            member.is_dismissed = True

    @property
    def has_been_left(self) -> bool:
        return all(member.has_ended for member in self.members)

    def have_come_to(self, ends: Mapping[TopicPartition, int]) -> bool:
        return all(
            self.places.has_come_to((group, key), end)
            for group in self.groups
            for key, end in ends.items()
        )
