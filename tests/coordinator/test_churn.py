"""Members come, go, die and come late, the coordinator fails over: who owns what stays clear."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.coordinator.classic_group import ClassicGroup
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode
from tests.coordinator.driving import Driven

PARTITIONS = 6
SESSION_MS = 10_000


class Ledger:
    """What any member was ever told, and what it means."""

    def __init__(self) -> None:
        self.owners: dict[tuple[int, int], str] = {}
        """Generation and partition → who reads it."""
        self._newest = self._seen = 0

    def look_at(self, answers: dict[object, Struct]) -> None:
        """Every answer in the order in which they were given."""
        for answer in list(answers.values())[self._seen :]:
            generation = getattr(answer, "generation_id", -1)
            assert generation == -1 or generation >= self._newest
            self._newest = max(self._newest, generation)
        self._seen = len(answers)

    def assigned(self, generation: int, owner: str, assignment: bytes) -> None:
        for partition in assignment:
            known = self.owners.setdefault((generation, partition), owner)
            assert known == owner, "two members own a partition in one generation"


class Consumer:
    """As clients behave: joins, assigns if it leads, syncs, beats, commits."""

    def __init__(self, driven: Driven, ledger: Ledger, instance_id: str | None) -> None:
        self.driven = driven
        self.ledger = ledger
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.waiting: int | None = None
        self.is_syncing = False
        self.owned = b""

    @property
    def name(self) -> str:
        """A static member that takes its own place is the same owner, and fences its past."""
        return self.instance_id or self.member_id

    def lose(self, *, identity: bool = True) -> None:
        self.waiting = None
        self.is_syncing = False
        self.generation = -1
        self.owned = b""
        if identity:
            self.member_id = ""

    def step(self, chance: Random) -> None:
        if self.waiting is not None:
            self._look()
        elif self.generation < 0:
            self.waiting = self.driven.join(
                self.member_id,
                instance_id=self.instance_id,
                session_timeout_ms=SESSION_MS,
                requires_member_id=True,
            )
        else:
            self._work(chance)

    def _look(self) -> None:
        answer = self.driven.answers.get(self.waiting)
        if answer is None:
            return
        self.waiting = None
        was_syncing, self.is_syncing = self.is_syncing, False
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        elif answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.lose(identity=False)
        elif answer.error_code:
            self.lose()
        elif was_syncing:
            self.owned = answer.assignment
            self.ledger.assigned(self.generation, self.name, answer.assignment)
        else:
            self._joined(answer)

    def _joined(self, answer: Struct) -> None:
        self.member_id, self.generation = answer.member_id, answer.generation_id
        members = [it.member_id for it in answer.members]
        assigned = {}
        if members and not answer.skip_assignment:
            shares: dict[str, list[int]] = {it: [] for it in members}
            for partition in range(PARTITIONS):
                shares[members[partition % len(members)]].append(partition)
            assigned = {it.replace("-", "_"): bytes(share) for it, share in shares.items()}
        self.waiting = self.driven.sync(self.member_id, self.generation, **assigned)
        self.is_syncing = True

    def _work(self, chance: Random) -> None:
        group = self.driven.groups.find("g")
        if self.owned and chance.random() < 0.5:
            place = ("orders", self.owned[0])
            before = self.driven.fetch(place=place)
            code = self.driven.commit(int(before) + 1, self.member_id, self.generation, place=place)
            if code == ErrorCode.NONE:
                assert isinstance(group, ClassicGroup)
                assert group.generation == self.generation, "a stale member committed"
                assert self.ledger.owners[self.generation, self.owned[0]] == self.name
        else:
            code = self.driven.heartbeat(
                self.member_id, self.generation, instance_id=self.instance_id
            )
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.lose(identity=False)
        elif code:
            self.lose()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_no_partition_has_two_owners_in_a_generation_and_no_stale_member_commits(seed: int) -> None:
    chance = Random(seed)
    driven, ledger = Driven(), Ledger()
    consumers: list[Consumer] = []
    for _ in range(250):
        choice = chance.random()
        if choice < 0.05 and len(consumers) < 5:
            static = chance.random() < 0.3
            instance_id = f"static-{chance.randrange(2)}" if static else None
            consumers.append(Consumer(driven, ledger, instance_id))
        elif choice < 0.07 and consumers:
            gone = consumers.pop(chance.randrange(len(consumers)))  # dies without a word
            if chance.random() < 0.5:
                driven.leave((gone.member_id, gone.instance_id))
        elif choice < 0.09:
            before = [driven.fetch(place=("orders", it)) for it in range(PARTITIONS)]
            driven.fail_over()
            after = [driven.fetch(place=("orders", it)) for it in range(PARTITIONS)]
            assert before == after
            for consumer in consumers:
                if consumer.waiting is not None:
                    consumer.lose(identity=False)
        elif choice < 0.3:
            driven.pass_time(chance.choice([10, 500, SESSION_MS // 2]))
        elif consumers:
            chance.choice(consumers).step(chance)
        ledger.look_at(driven.answers)
    # Whatever happened, those who are left find together.
    for _ in range(40):
        for consumer in consumers:
            for _ in range(4):
                consumer.step(chance)
        driven.pass_time(SESSION_MS // 4)
    alive = {it.instance_id or id(it): it for it in consumers}
    if len(alive) == len(consumers) > 0:
        assert driven.state_of() == "Stable"
        assert sorted(b"".join(it.owned for it in consumers)) == list(range(PARTITIONS))
