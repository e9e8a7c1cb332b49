"""A run: client processes that are started, killed and started again, then brought to rest."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from sapwood.chaos.notes import Note, decoded, read
from sapwood.chaos.orders import CALM, DRAIN, Orders, Plant
from sapwood.chaos.verdict import Record, Verdict, judge, merged
from sapwood.client import Client, KafkaClient
from sapwood.client.admin import NewTopic

_TICK_S = 0.1
_KILL_EVERY_S = 2.0
_FEWEST_STEPS = 10  # of a process before it is killed: on a slow machine it should get somewhere
_LATEST_RESTART_S = 1.0
_REST_S = 240.0  # a cluster's default session timeout is 45 s, and machines may be slow


@dataclass(frozen=True, slots=True)
class Plan:
    topics: int = 4
    partitions: int = 2
    publishers: int = 3
    subscribers: int = 4
    seconds: float = 30.0
    seed: int = 1
    rate: float = 10.0
    """Messages a second of each publisher."""
    messages: int = 0
    """To be got in all, at least: a slow machine gets more time."""
    plant: Plant = ""


class Actor:
    """A client, through all its processes."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self.starts = 0
        self.messages = 0
        self.last: Note | None = None
        self.steps = 0
        """Of the present process."""
        self._process: subprocess.Popen[bytes] | None = None
        self._path = orders.notes
        self._seen_bytes = 0
        self._start_at = 0.0

    @property
    def has_ended(self) -> bool:
        return self.last is not None and self.last.what == "ended"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def keep_alive(self, chance: random.Random) -> None:
        if self.is_running or self.has_ended:
            return
        now = time.monotonic()
        if self._process is not None:
            self._process = None
            self._start_at = now + chance.uniform(0, _LATEST_RESTART_S)
        if now >= self._start_at:
            orders = msgspec.json.encode(self.orders).decode()
            command = [sys.executable, "-m", "sapwood.chaos", orders]
            with self._path.with_suffix(".err").open("ab") as errors:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors
                )
            self.starts += 1
            self.steps = 0

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def look(self) -> None:
        """Take in what it has noted since the last look."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._seen_bytes)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._seen_bytes += len(whole)
        for note in decoded(whole.splitlines()):
            self.last = note
            self.steps += 1
            self.messages += note.what in ("stored", "got")

    def notes(self) -> list[Note]:
        return list(read(self._path)) if self._path.exists() else []


Show: TypeAlias = Callable[[str, Sequence[Actor]], None]


class Nemesis:
    """What befalls the cluster meanwhile: nothing."""

    def act(self) -> None:
        """Called about ten times a second."""

    def heal(self) -> None:
        """Called when it is over."""


class Run:
    """`show` is called about ten times a second, with the phase and the clients."""

    def __init__(
        self, plan: Plan, bootstrap: str, directory: Path, show: Show, nemesis: Nemesis
    ) -> None:
        self._plan = plan
        self._nemesis = nemesis
        self._bootstrap = bootstrap
        self._directory = directory
        self._show = show
        self._chance = random.Random(plan.seed)
        name = f"chaos-{int(time.time())}"
        self.topics = [f"{name}-{number + 1}" for number in range(plan.topics)]
        self._publishers = [
            self._actor("publisher", f"p{number + 1}") for number in range(plan.publishers)
        ]
        self._subscribers = [
            actor for number in range(plan.subscribers) for actor in self._subscriber(number)
        ]
        self._actors = [*self._publishers, *self._subscribers]

    def _acknowledges(self, number: int) -> bool:
        """Every other subscriber does it itself, unless a planted bug wants it otherwise."""
        if self._plan.plant in ("keep-late", "acknowledge-late", "stale-owner"):
            return self._plan.plant == "keep-late"
        return number % 2 == 1

    def _subscriber(self, number: int) -> Iterator[Actor]:
        """Of every four the last two have two processes each; with a planted bug, all or none."""
        is_shared = self._plan.plant == "stale-owner" or (
            not self._plan.plant and number % 4 in (2, 3)
        )
        for process in range(1 + is_shared):
            yield self._actor(
                "subscriber",
                f"s{number + 1}",
                acknowledges=self._acknowledges(number),
                process=process,
                is_shared=is_shared,
            )

    def _actor(self, role: str, name: str, **more: Any) -> Actor:
        plan = self._plan
        return Actor(
            Orders(
                role="publisher" if role == "publisher" else "subscriber",
                name=name,
                bootstrap=self._bootstrap,
                directory=str(self._directory),
                topics=self.topics,
                seed=plan.seed,
                life_s=plan.seconds + 3 * _REST_S,
                rate=plan.rate,
                plant=plan.plant,
                **more,
            )
        )

    def carry_out(self) -> Verdict:
        with KafkaClient(self._bootstrap) as client:
            client.create_topics([NewTopic(each, self._plan.partitions) for each in self.topics])
        try:
            self._trouble()
            self._nemesis.heal()
            (self._directory / CALM).touch()
            self._await_end("publishers finish", self._publishers)
            (self._directory / DRAIN).touch()
            self._await_end("subscribers finish", self._subscribers)
        finally:
            for actor in self._actors:
                actor.kill()
        self._show("judging", self._actors)
        return judge(
            self._records(),
            {each.orders.name: each.notes() for each in self._publishers},
            {
                each.orders.name: merged(
                    *(it.notes() for it in self._subscribers if it.orders.name == each.orders.name)
                )
                for each in self._subscribers
                if not each.orders.process
            },
            [each.orders.name for each in self._subscribers if each.orders.acknowledges],
        )

    def clean_up(self) -> None:
        """Leave no topic and no subscription behind."""
        for actor in self._subscribers:
            if actor.orders.process:
                continue
            with Client(self._bootstrap, actor.orders.name) as client:
                for topic in self.topics:
                    client.unsubscribe(topic)
        with KafkaClient(self._bootstrap) as client:
            client.delete_topics(self.topics)

    def _trouble(self) -> None:
        ends_at = time.monotonic() + self._plan.seconds
        kill_at = time.monotonic() + _KILL_EVERY_S
        while (now := time.monotonic()) < ends_at or (
            sum(each.messages for each in self._subscribers) < self._plan.messages
            and now < ends_at + _REST_S
        ):
            self._tick("trouble")
            self._nemesis.act()
            actor = self._chance.choice(self._actors)
            if now > kill_at and actor.steps >= _FEWEST_STEPS:
                kill_at = now + self._chance.uniform(0, 2 * _KILL_EVERY_S)
                actor.kill()

    def _await_end(self, phase: str, actors: Sequence[Actor]) -> None:
        ends_at = time.monotonic() + _REST_S
        while not all(each.has_ended for each in actors) and time.monotonic() < ends_at:
            self._tick(phase)

    def _tick(self, phase: str) -> None:
        for actor in self._actors:
            actor.look()
            actor.keep_alive(self._chance)
        self._show(phase, self._actors)
        time.sleep(_TICK_S)

    def _records(self) -> Iterator[Record]:
        """What lies in the topics."""
        with KafkaClient(self._bootstrap) as client:
            for topic in self.topics:
                positions = {(topic, number): -2 for number in range(self._plan.partitions)}
                for record in client.consume(positions, stop_at="end"):
                    publisher, number = (record.value or b"").decode().split()
                    yield Record(topic, record.partition, record.offset, publisher, int(number))
