"""Members of groups of the newer protocol that do nothing but belong: many in one process."""

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence

from bench.peers import LoadFailed
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct, decode_response
from sapwood.wire.errors import ErrorCode
from sapwood.wire.frames import decode_response_header, encode_request_frame

RETRY_S = 0.1
LOOK_S = 0.02
ANSWER_S = 30.0
REBALANCE_MS = 60_000
_UNPLACED = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
_FENCED = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})

Address = tuple[str, int]
TopicPartition = tuple[bytes, int]


class Refused(Exception):
    """An answer with an error that a member can't do anything about."""


class Connection:
    """One request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)

    @classmethod
    async def to(cls, address: Address) -> "Connection":
        return cls(*await asyncio.open_connection(*address))

    async def ask(self, api: Api, version: int, message: Struct) -> Struct:
        frame = encode_request_frame(api, version, next(self._numbers), "bench", message)
        self._writer.writelines(frame)
        async with asyncio.timeout(ANSWER_S):
            size = int.from_bytes(await self._reader.readexactly(4))
            data = memoryview(await self._reader.readexactly(size))
        _, start = decode_response_header(api, version, data)
        return decode_response(api, version, data, start)

    def close(self) -> None:
        self._writer.close()


class Member:
    """Joins, follows what it is told, and says so; finds its coordinator whenever that moves."""

    def __init__(self, addresses: Sequence[Address], group: str, name: str, topic: str) -> None:
        self._addresses = itertools.cycle(addresses)
        self._group = group
        self._name = name
        self._topic = topic
        self._connection: Connection | None = None
        self.epoch = 0
        self.owned: frozenset[TopicPartition] = frozenset()
        self.heard_at = 0.0
        self.answers = 0

    async def run(self) -> None:
        interval_s = 0.0
        says_owned = True
        while True:
            try:
                answer = await self._beat(self.epoch, says_owned=says_owned)
            except (OSError, EOFError, TimeoutError):
                self._disconnect()
                says_owned = True
                await asyncio.sleep(RETRY_S)
                continue
            says_owned, interval_s = self._follow(answer)
            await asyncio.sleep(interval_s)

    async def leave(self) -> None:
        await self._beat(-1, says_owned=False)
        self.owned = frozenset()
        self._disconnect()

    def _follow(self, answer: Struct) -> tuple[bool, float]:
        """Whether the next heartbeat says what it has, and when that is."""
        code = ErrorCode(answer.error_code)
        if code in _UNPLACED:
            self._disconnect()
            return True, RETRY_S
        if code in _FENCED:
            self.epoch, self.owned = 0, frozenset()
            return True, 0.0
        if code:
            raise Refused(f"{code.name}: {answer.error_message}")
        self.epoch = answer.member_epoch
        self.heard_at = time.monotonic()
        self.answers += 1
        if answer.assignment is None:
            return False, answer.heartbeat_interval / 1000
        before = self.owned
        self.owned = frozenset(
            (topic.topic_id, index)
            for topic in answer.assignment.topic_partitions
            for index in topic.partitions
        )
        return True, 0.0 if before != self.owned else answer.heartbeat_interval / 1000

    async def _beat(self, epoch: int, *, says_owned: bool) -> Struct:
        joins = epoch == 0
        by_topic: dict[bytes, list[int]] = {}
        for topic_id, index in self.owned:
            by_topic.setdefault(topic_id, []).append(index)
        message = Struct(
            group_id=self._group,
            member_id=self._name,
            member_epoch=epoch,
            instance_id=None,
            rack_id=None,
            rebalance_timeout=REBALANCE_MS if joins or says_owned else -1,
            subscribed_topic_names=[self._topic] if joins or says_owned else None,
            subscribed_topic_regex=None,
            server_assignor=None,
            topic_partitions=[Struct(topic_id=it, partitions=by_topic[it]) for it in by_topic]
            if joins or says_owned
            else None,
        )
        if self._connection is None:
            self._connection = await self._connect()
        return await self._connection.ask(Api.CONSUMER_GROUP_HEARTBEAT, 1, message)

    async def _connect(self) -> Connection:
        message = Struct(key_type=0, coordinator_keys=[self._group])
        asked = await Connection.to(next(self._addresses))
        try:
            answer = await asked.ask(Api.FIND_COORDINATOR, 4, message)
        finally:
            asked.close()
        found = answer.coordinators[0]
        if found.error_code:
            raise OSError(f"no coordinator: {found.error_message}")
        return await Connection.to((found.host, found.port))

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Crowd:
    """Members that run until the end of the `async with`."""

    def __init__(self) -> None:
        self.members: dict[Member, asyncio.Task[None]] = {}

    async def __aenter__(self) -> "Crowd":
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self.members.values():
            task.cancel()
        await asyncio.gather(*self.members.values(), return_exceptions=True)

    def add(self, member: Member) -> None:
        self.members[member] = asyncio.ensure_future(member.run())

    async def remove(self, member: Member) -> None:
        task = self.members.pop(member)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await member.leave()

    @property
    def answers(self) -> int:
        return sum(member.answers for member in self.members)

    def check(self) -> None:
        for task in self.members.values():
            if task.done():
                task.result()

    def shares(self, partitions: int) -> bool:
        """Whether each of so many partitions has one owner, and all are in one epoch."""
        owned = Counter(one for member in self.members for one in member.owned)
        sizes = {len(member.owned) for member in self.members}
        epochs = {member.epoch for member in self.members}
        return len(owned) == sum(owned.values()) == partitions and (
            max(sizes) - min(sizes) <= 1 and len(epochs) == 1
        )

    async def until(self, is_so: Callable[[], bool], limit_s: float = 120.0) -> float:
        """Seconds until it is so."""
        began = time.monotonic()
        while not is_so():
            self.check()
            if time.monotonic() - began > limit_s:
                raise LoadFailed(f"the members came to no rest within {limit_s:.0f} s")
            await asyncio.sleep(LOOK_S)
        return time.monotonic() - began
