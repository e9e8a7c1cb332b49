"""A client's place in a consumer group, in either protocol: what is its own, and as whom.

The newer protocol is the shipped client's. The classic one, which that doesn't speak, is here:
whoever hears of a rebalance lets go of everything and joins again; who leads, assigns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from sapwood.client.calls import GROUP, Coordinator
from sapwood.client.cluster import TopicPartition
from sapwood.client.effects import Ticket
from sapwood.client.errors import MISPLACED, error_for
from sapwood.client.groups import NO_MEMBER, Membership
from sapwood.client.procedures import Procedure, Wait, wait_for
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError
from sim.workload import SimClient

SESSION_MS = 3_000
REBALANCE_MS = 3_000
HEARTBEAT_MS = 500
GOODBYE_MS = 2_000
BUSY_MS = 50
NOTHING: frozenset[TopicPartition] = frozenset()
Share = tuple[Membership, frozenset[TopicPartition]]


class Seat(Protocol):
    is_busy: bool
    """While it is, nothing is let go of that others could get."""

    @property
    def share(self) -> Share: ...

    def change(self) -> Ticket[None]:
        """Settled when the share changes next."""

    def fenced(self, code: ErrorCode) -> None:
        """A commit was refused with this."""

    def leave(self) -> Procedure[None]: ...


class ConsumerSeat:
    """The newer protocol: the coordinator assigns, one partition at a time."""

    def __init__(self, client: SimClient, group: str, topics: Sequence[str], name: str) -> None:
        self._client = client
        self._member = client.core.join(group, topics, name)

    @property
    def is_busy(self) -> bool:
        return self._member.is_busy

    @is_busy.setter
    def is_busy(self, value: bool) -> None:
        self._member.is_busy = value

    @property
    def share(self) -> Share:
        if self._member.failure is not None:
            raise self._member.failure
        return self._member.membership, self._member.owned

    def change(self) -> Ticket[None]:
        return self._member.change()

    def fenced(self, code: ErrorCode) -> None:
        self._member.fenced(code, self._client.now_ms())

    def leave(self) -> Procedure[None]:
        now_ms = self._client.now_ms()
        yield Wait((self._client.core.leave(self._member, now_ms),), now_ms + GOODBYE_MS)


class ClassicSeat:
    def __init__(self, client: SimClient, group: str, keys: Sequence[TopicPartition]) -> None:
        self.is_busy = False
        self._client = client
        self._group = group
        self._keys = keys
        self._share: Share = NO_MEMBER, NOTHING
        self._failure: KafkaError | None = None
        self._change: Ticket[None] | None = None
        self._member_id = ""
        self._lost: ErrorCode | None = None

    @property
    def share(self) -> Share:
        if self._failure is not None:
            raise self._failure
        return self._share

    def change(self) -> Ticket[None]:
        self._change = self._change or Ticket()
        return self._change

    def fenced(self, code: ErrorCode) -> None:
        self._lost = code

    def leave(self) -> Procedure[None]:
        leaving = Struct(member_id=self._member_id, group_instance_id=None, reason=None)
        message = Struct(group_id=self._group, member_id=self._member_id, members=[leaving])
        ticket = self._ask(Api.LEAVE_GROUP, message)
        yield Wait((ticket,), self._client.now_ms() + GOODBYE_MS)

    def keep(self) -> Procedure[None]:
        """For as long as the client is there, and the coordinator can be reached."""
        try:
            yield from self._stay()
        except KafkaError as error:
            self._failure = error
            self._notify()

    def _stay(self) -> Procedure[None]:
        while True:
            generation = yield from self._join()
            while generation is not None and self._lost is None:
                yield Wait((), self._client.now_ms() + HEARTBEAT_MS)
                if self._lost is None:
                    self._lost = yield from self._beat(generation)
            while self.is_busy:
                yield Wait((), self._client.now_ms() + BUSY_MS)
            if self._lost is ErrorCode.UNKNOWN_MEMBER_ID:
                self._member_id = ""
            self._take(NO_MEMBER, NOTHING)
            self._lost = None
            yield Wait((), self._client.now_ms() + BUSY_MS)

    def _take(self, membership: Membership, owned: frozenset[TopicPartition]) -> None:
        self._share = membership, owned
        self._notify()

    def _notify(self) -> None:
        if self._change is not None:
            ticket, self._change = self._change, None
            self._client.core.settle(ticket)

    def _ask(self, api: Api, message: Struct) -> Ticket[Struct]:
        target = Coordinator(GROUP, self._group)
        return self._client.core.request(api, message, target, None, self._client.now_ms(), _read)

    def _join(self) -> Procedure[int | None]:
        """The generation, or None if there is a newer one already."""
        message = Struct(
            group_id=self._group,
            session_timeout=SESSION_MS,
            rebalance_timeout=REBALANCE_MS,
            member_id=self._member_id,
            group_instance_id=None,
            protocol_type="simulated",
            protocols=[Struct(name="in turn", metadata=b"")],
            reason=None,
        )
        joined = yield from wait_for(self._ask(Api.JOIN_GROUP, message))
        if joined.error_code:
            is_new = joined.error_code == ErrorCode.MEMBER_ID_REQUIRED
            self._member_id = joined.member_id if is_new else ""
            return None
        self._member_id = joined.member_id
        members = sorted(it.member_id for it in joined.members)
        message = Struct(
            group_id=self._group,
            generation_id=joined.generation_id,
            member_id=self._member_id,
            group_instance_id=None,
            protocol_type="simulated",
            protocol_name="in turn",
            assignments=[
                Struct(member_id=it, assignment=msgspec.json.encode(self._keys[n :: len(members)]))
                for n, it in enumerate(members)
            ],
        )
        synced = yield from wait_for(self._ask(Api.SYNC_GROUP, message))
        if synced.error_code:
            self._lost = ErrorCode(synced.error_code)
            return None
        owned = msgspec.json.decode(synced.assignment, type=list[TopicPartition])
        self._take(Membership(self._member_id, joined.generation_id), frozenset(owned))
        return int(joined.generation_id)

    def _beat(self, generation: int) -> Procedure[ErrorCode | None]:
        message = Struct(
            group_id=self._group,
            generation_id=generation,
            member_id=self._member_id,
            group_instance_id=None,
        )
        answer = yield from wait_for(self._ask(Api.HEARTBEAT, message))
        return ErrorCode(answer.error_code) if answer.error_code else None


def _read(answer: Struct) -> Struct:
    """What is to be asked again elsewhere raises; the rest is for the caller."""
    if answer.error_code in MISPLACED:
        raise error_for(answer.error_code, "the group's coordinator")
    return answer
