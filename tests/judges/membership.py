"""Members of groups in processes of their own, and what they have said."""

import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent


class Member:
    def __init__(self, kind: str, bootstrap: str, group: str, topic: str, **settings: str) -> None:
        self.processed: list[tuple[int, int]] = []
        self.assignments: list[list[int]] = []
        self.owned: set[int] = set()
        self.member_ids: list[str] = []
        self.refused: list[str] = []
        arguments = [kind, bootstrap, group, topic, json.dumps(settings)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.judges.member", *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def _listen(self) -> None:
        for line in self._process.stdout or ():
            with contextlib.suppress(json.JSONDecodeError):  # killed in the middle of a word
                self._heard(json.loads(line))

    def _heard(self, said: dict[str, Any]) -> None:
        self.processed += [(partition, offset) for partition, offset in said.get("got", [])]
        if "refused" in said:
            self.refused.append(said["refused"])
        if "revoked" in said:
            self.owned -= set(said["revoked"])
        if "assigned" in said:
            self.assignments.append(said["assigned"])
            self.owned |= set(said["assigned"])
            self.member_ids.append(said.get("member", ""))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def leave(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        self._process.send_signal(number)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
        self._listening.join(10)
        self.owned.clear()


class Members:
    """All of one group; whoever is left at the end is ended."""

    def __init__(self, kind: str, bootstrap: str, group: str, topic: str) -> None:
        self.where = bootstrap, group, topic
        self.kind = kind
        self.all: list[Member] = []
        self.alive: list[Member] = []

    def start(self, count: int = 1, **settings: str) -> list[Member]:
        started = [Member(self.kind, *self.where, **settings) for _ in range(count)]
        self.all += started
        self.alive += started
        return started

    def bury(self) -> int:
        """Forget those who have ended by themselves, and say how many."""
        ended = [member for member in self.alive if member.has_ended]
        self.alive = [member for member in self.alive if member not in ended]
        return len(ended)

    def kill(self, member: Member) -> None:
        self.alive.remove(member)
        member.kill()

    def leave(self, member: Member) -> None:
        self.alive.remove(member)
        member.leave()

    @property
    def processed(self) -> list[tuple[int, int]]:
        return [it for member in list(self.all) for it in list(member.processed)]

    def share(self, partitions: int) -> bool:
        """Whether those who live have divided all partitions between them, each with some."""
        owned = [list(member.owned) for member in self.alive]
        everything = sorted(it for each in owned for it in each)
        return all(owned) and everything == list(range(partitions))


@contextlib.contextmanager
def members(kind: str, bootstrap: str, group: str, topic: str) -> Iterator[Members]:
    group_members = Members(kind, bootstrap, group, topic)
    try:
        yield group_members
    finally:
        for member in list(group_members.alive):
            group_members.kill(member)
