"""A durable subscriber of one topic: takes messages, and commits before it hands them out.

The subscription is the consumer group `topic␟id`; its committed positions are all there is to it,
so it outlives its processes. Processes with the same id are members of the group and share its
partitions. A take is one commit, fenced by the member's epoch and signed with a token. If the
answer is lost, the member leaves, so that the commit can't arrive any more, and the token tells
whether it had: only then are the messages handed out, or left to whoever comes next.
Always: at most one commit under way; until its fate is known nothing else is taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from sapwood.client.cluster import TopicPartition
from sapwood.client.core import ClientCore
from sapwood.client.effects import Ticket
from sapwood.client.errors import NotAcknowledged, NotSubscribed, PositionLost
from sapwood.client.fetcher import ConsumedRecord, Fetcher, Unreadable, read_what_can_be
from sapwood.client.groups import NO_MEMBER, Committed, Membership
from sapwood.client.ledger import Ledger
from sapwood.client.member import Member
from sapwood.client.messages import Message, received
from sapwood.client.offsets import EARLIEST, LATEST
from sapwood.client.procedures import FOREVER, Procedure, Wait, wait_for
from sapwood.wire.errors import ErrorCode, KafkaError

# Ids are hashed to their coordinator by what stands before this: a topic's subscriptions share one.
SEPARATOR = "␟"

# The coordinator leaves a position that is there already alone if this is the new one's metadata.
_FIRST = "subscribed"

# The answer to a commit is waited for even if there is no time left to wait for messages.
_PATIENCE_MS = 5_000
_GOODBYE_MS = 2_000
# Who waits is in use: its member is told so this often.
_STILL_HERE_MS = 10_000
_FENCED = frozenset(
    {
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.GROUP_ID_NOT_FOUND,
    }
)


def group_of(topic: str, subscriber: str) -> str:
    return f"{topic}{SEPARATOR}{subscriber}"


_GONE = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND)
_Positions = dict[TopicPartition, Committed]


class Signed(NamedTuple):
    """Positions, as whom to commit them, and the token by which they are known again."""

    token: str
    membership: Membership
    positions: _Positions


@dataclass(slots=True)
class _Take:
    """Messages whose commit was sent, until it is known what became of it."""

    messages: list[Message]
    signed: Signed
    ticket: Ticket[None]


@dataclass(slots=True)
class _Out:
    """A message that was handed out and isn't acknowledged yet."""

    record: ConsumedRecord
    again_at_ms: float


class Subscriber:
    def __init__(
        self,
        core: ClientCore,
        clock: Callable[[], float],
        new_name: Callable[[], str],
        topic: str,
        subscriber: str,
    ) -> None:
        self._core = core
        self._clock = clock
        self._new_name = new_name
        self._topic = topic
        self.subscriber = subscriber
        self.group = group_of(topic, subscriber)
        self._member: Member | None = None
        self._fetcher: Fetcher | None = None
        self._ledgers: dict[TopicPartition, Ledger] = {}
        self._ready: deque[ConsumedRecord] = deque()
        self._unreadable: deque[Unreadable] = deque()  # passed over, and not told yet
        self._out: dict[TopicPartition, dict[int, _Out]] = {}
        self._take: _Take | None = None
        self._owed: list[Message] = []  # taken, and not handed out yet
        self._handed: list[Message] = []  # those that a transaction was given, until it ends
        self._picked: dict[TopicPartition, Ledger] = {}  # by a transaction that is open
        self._reader: object = None  # that transaction
        self._count = 0
        self._turn: Ticket[None] | None = None
        self._room: Ticket[None] | None = None  # settled when something was acknowledged

    # Subscribing

    def subscribe(self, start: str) -> Procedure[bool]:
        """True if this began the subscription; one that is there already stays where it is."""
        committed = yield from self._committed(())
        if any(each.offset >= 0 for each in committed.values()):
            return False
        found = yield from wait_for(
            self._core.list_offsets(
                dict.fromkeys(committed, EARLIEST if start == "earliest" else LATEST), self._clock()
            )
        )
        positions = {key: Committed(each.offset, _FIRST) for key, each in found.items()}
        deadline_ms = self._clock() + self._core.config.api_timeout_ms
        while True:
            try:
                yield from wait_for(
                    self._core.groups.commit(self.group, NO_MEMBER, positions, self._clock())
                )
            except KafkaError as error:
                if not error.code.retriable or self._clock() >= deadline_ms:
                    raise
                yield Wait((), self._clock() + self._core.config.pause_ms(0))
            else:
                return True

    def unsubscribe(self) -> Procedure[None]:
        yield from self.close()
        yield from wait_for(self._core.groups.delete(self.group, self._clock()))

    def close(self) -> Procedure[None]:
        """Let others have the partitions at once."""
        member = self._dissolve()
        if member is not None:  # if nobody answers, its session will time out
            leaving = self._core.leave(member, self._clock())
            yield Wait((leaving,), self._clock() + _GOODBYE_MS)

    # Taking

    def take(self, most: int, until_ms: float) -> Procedure[list[Message]]:
        """Up to `most` messages, by now committed: nobody gets them again."""
        while True:
            with (yield from self._my_turn()):
                yield from self._prepare(until_ms)
                if not self._owed and (records := self._next_records(most)):
                    self._acknowledge(records)
                    self._commit([received(each) for each in records], _keys(records))
                    yield from self._settle(until_ms)
                taken, self._owed = self._owed[:most], self._owed[most:]
            if taken or self._clock() >= until_ms:
                return taken
            yield from self._news(until_ms)

    def lend(
        self,
        most: int,
        until_ms: float,
        again_after_ms: float,
        acknowledge: Callable[[Message], Any],
    ) -> Procedure[list[Message]]:
        """Up to `most` messages that come again unless they are acknowledged in time."""
        while True:
            with (yield from self._my_turn()):
                yield from self._prepare(until_ms)
                owed, self._owed = self._owed[:most], self._owed[most:]
                records = self._overdue(most - len(owed))
                again_at_ms = self._clock() + again_after_ms
                for record in records:
                    self._out[record[:2]][record.offset].again_at_ms = again_at_ms
                while len(records) + len(owed) < most and (one := self._next_records(1)):
                    records += one
                    out = self._out.setdefault(one[0][:2], {})
                    out[one[0].offset] = _Out(one[0], again_at_ms)
            lent = [replace(each, _acknowledge=acknowledge) for each in owed]
            lent += [received(record, acknowledge) for record in records]
            if lent or self._clock() >= until_ms:
                return lent
            yield from self._news(min(until_ms, self._next_overdue_ms()))

    def acknowledge(self, message: Message) -> Procedure[None]:
        key = message.topic, message.partition
        while True:
            with (yield from self._my_turn()):
                yield from self._prepare(FOREVER)
                ledger = self._ledgers.get(key)
                if ledger is not None:
                    if ledger.is_acknowledged(message.offset):
                        self._out.get(key, {}).pop(message.offset, None)
                        self._make_room()
                        return
                    ledger.acknowledge(message.offset, message.offset + 1)
                    self._commit([], [key])
                    yield from self._settle(FOREVER)
                    continue
                if self._member is not None and self._member.is_settled:
                    self._out.pop(key, None)
                    raise NotAcknowledged(f"message {message.id}: {NotAcknowledged.__doc__}")
            yield from self._news(self._clock() + _PATIENCE_MS)

    def _make_room(self) -> None:
        room, self._room = self._room, None
        if room is not None:
            self._core.settle(room)

    # Taking in a transaction, which ends by `release`

    @property
    def is_picked_from(self) -> bool:
        return bool(self._picked)

    def pick(self, reader: object, most: int, until_ms: float) -> Procedure[list[Message]]:
        """Messages whose positions are the transaction's, `reader`, to commit."""
        while True:
            with (yield from self._my_turn(reader)):
                yield from self._prepare(until_ms)
                if self._owed:
                    owed, self._owed = self._owed[:most], self._owed[most:]
                    self._handed += owed
                    return owed
                records = self._next_records(most)
                self._acknowledge(records)
                self._reader = reader
                for key in _keys(records):
                    self._picked.setdefault(key, self._ledgers[key])
            if records or self._clock() >= until_ms:
                return [received(record) for record in records]
            yield from self._news(until_ms)

    def sign(self) -> Signed:
        """What the transaction has to commit."""
        if any(self._ledgers.get(key) is not ledger for key, ledger in self._picked.items()):
            raise self._moved()  # or read anew, from before what was picked
        return self._sign(self._picked)

    def release(self, signed: Signed | None) -> Procedure[bool]:
        """After the transaction: whether these positions were committed; if not, back to before."""
        is_committed = False
        try:
            if signed is not None:
                is_committed = bool((yield from self._committed_under(signed)))
            return is_committed
        finally:
            if not is_committed:
                self._owed = self._handed + self._owed
            for key in self._picked:
                self._unload(key)
            self.keep()

    def keep(self) -> None:
        """The transaction was committed."""
        self._picked, self._handed = {}, []
        if self._member is not None and self._turn is None:
            self._member.is_busy = self._take is not None

    def recover(self, most: int, until_ms: float) -> Procedure[list[Message]]:
        """What an earlier call took and nobody waited for."""
        with (yield from self._my_turn()):
            yield from self._settle(until_ms)
            owed, self._owed = self._owed[:most], self._owed[most:]
            return owed

    def suspend(self, signed: Signed | None, messages: list[Message]) -> None:
        """The transaction was left alone before its end; if its positions were to be committed,
        what became of that decides, later, whether these messages are still to be handed out."""
        picked, self._picked = self._picked, {}
        if signed is None:
            for key in picked:
                self._unload(key)
            return
        unheard: Ticket[None] = Ticket()
        unheard.settle(None, KafkaError(ErrorCode.REQUEST_TIMED_OUT, "nobody waited"))
        self._take = _Take(messages, signed, unheard)

    # One at a time

    def _my_turn(self, reader: object = None) -> Procedure[AbstractContextManager[None]]:
        while self._turn is not None:
            yield Wait((self._turn,))
        if self._picked and self._reader is not reader:
            raise RuntimeError(
                f"topic {self._topic} is being read in a transaction: get through the transaction "
                "until it has ended"
            )
        self._turn = Ticket()
        return self._hold_turn()

    @contextmanager
    def _hold_turn(self) -> Iterator[None]:
        if self._member is not None:
            self._member.is_busy = True
        try:
            yield
        finally:
            if self._member is not None:
                self._member.is_busy = self._take is not None or bool(self._picked)
            turn, self._turn = self._turn, None
            if turn is not None:
                self._core.settle(turn)

    # Ownership

    def _committed(self, also: Iterable[TopicPartition]) -> Procedure[_Positions]:
        """The positions in all partitions; −1 in each if there is no subscription."""
        topic = self._core.usable_topic(self._topic, None)
        if topic is None:
            topic = yield from wait_for(self._core.await_topic(self._topic, None, self._clock()))
        keys = {(self._topic, partition) for partition in topic.partitions}.union(also)
        return (
            yield from wait_for(
                self._core.groups.positions(self.group, sorted(keys), self._clock())
            )
        )

    def _prepare(self, until_ms: float) -> Procedure[None]:
        """Be a member, know the positions of what we own, and be reading from there."""
        yield from self._settle(until_ms)
        if self._take is not None:
            return
        member = self._member
        if member is not None and member.failure is not None:
            self._dissolve()
            raise member.failure
        if member is not None and not self._picked:
            member.use(self._clock())  # who asks without a pause is never found idle
        self._let_go()
        owned = frozenset() if member is None else member.owned
        missing = [key for key in sorted(owned) if key not in self._ledgers]
        if missing or member is None:
            positions = yield from self._committed(missing)
            if all(each.offset < 0 for each in positions.values()):
                yield from self.close()
                raise NotSubscribed(
                    f"{self.subscriber} has no subscription to {self._topic}: subscribe first"
                )
            if self._fetcher is None:
                self._fetcher = self._core.fetch({}, {})
            for key in missing:
                self._load(key, positions[key])
        if member is None:
            self._member = self._core.join(self.group, [self._topic], self._new_name())
            self._member.is_busy = True
        self._let_go()
        try:
            self._decode()
        except KafkaError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                self._stop_reading()
                raise
            yield from self._find_loss()
        else:
            if self._unreadable:
                raise self._unreadable.popleft().as_loss()
            yield from self._pass_over(until_ms)
        self._let_go()

    def _let_go(self) -> None:
        """Forget where we were in partitions that the member has let go of, be it that it owns
        them again: others may have moved their positions. To be done after every wait."""
        if self._member is not None:
            for key in self._member.let_go:
                self._unload(key)
            self._member.let_go.clear()

    def _load(self, key: TopicPartition, committed: Committed) -> None:
        ledger = self._ledgers[key] = Ledger(committed)
        out = self._out.get(key, {})
        for offset in [each for each in out if ledger.is_acknowledged(each)]:
            del out[offset]
        if self._fetcher is not None:
            self._fetcher.seek(key, ledger.position)

    def _unload(self, key: TopicPartition) -> None:
        self._ledgers.pop(key, None)
        self._ready = deque(each for each in self._ready if each[:2] != key)
        if self._fetcher is not None:
            self._fetcher.release(key)

    def _dissolve(self) -> Member | None:
        self._stop_reading()
        member, self._member = self._member, None
        return member

    def _stop_reading(self) -> None:
        self._ledgers.clear()
        self._ready.clear()
        if self._fetcher is not None:
            self._core.stop_fetching(self._fetcher, self._clock())
            self._fetcher = None

    # Reading

    def _decode(self) -> None:
        while not self._ready and self._fetcher is not None:
            chunk = self._fetcher.take()
            if chunk is None:
                return
            ledger = self._ledgers.get(chunk[:2])
            if ledger is None:
                continue
            try:
                found = list(read_what_can_be(chunk))
            except Exception as error:
                # It would seem that what is behind it comes next: read no more, whoever asks.
                self._fetcher.release(chunk[:2])
                self._fetcher.close(error)
                raise
            for record in found:
                if isinstance(record, Unreadable):
                    self._unreadable.append(record)
                    continue
                # Offsets that no record has (of control records, say) need no acknowledgement.
                if record.offset > ledger.read_to:
                    ledger.acknowledge(ledger.read_to, record.offset)
                ledger.read_to = record.offset + 1
                self._ready.append(record)
            if chunk.next_offset > ledger.read_to:
                ledger.acknowledge(ledger.read_to, chunk.next_offset)
                ledger.read_to = chunk.next_offset

    def _pass_over(self, until_ms: float) -> Procedure[None]:
        """Commit positions behind what is no message, the end of a transaction, say, if nothing
        else is to be done: else it would be pending for ever, and be kept from retention."""
        keys = [key for key, ledger in self._ledgers.items() if ledger.position > ledger.told]
        if keys and not self._ready and not self._picked:
            self._commit([], keys)
            yield from self._settle(until_ms)

    def _next_records(self, most: int) -> list[ConsumedRecord]:
        records: list[ConsumedRecord] = []
        if self._take is not None:
            return records
        while self._ready and len(records) < most:
            record = self._ready[0]
            key, offset = record[:2], record.offset
            ledger, out = self._ledgers[key], self._out.get(key, {})
            if offset not in out and not ledger.is_acknowledged(offset):
                if not self._has_room_for(record):
                    break
                records.append(record)
            self._ready.popleft()
            if not self._ready:
                with suppress(KafkaError):  # it stays, and is told to who asks when these are used
                    self._decode()
        return records

    def _has_room_for(self, record: ConsumedRecord) -> bool:
        key = record[:2]
        return self._ledgers[key].has_room_for(record.offset, len(self._out.get(key, ())))

    def _overdue(self, most: int) -> list[ConsumedRecord]:
        now_ms = self._clock()
        return [
            each.record
            for key, out in self._out.items()
            if key in self._ledgers
            for each in sorted(out.values(), key=lambda each: each.record.offset)
            if each.again_at_ms <= now_ms
        ][:most]

    def _next_overdue_ms(self) -> float:
        """Of what `_overdue` will tell of: what others own by now is theirs to lend."""
        outs = [
            each.again_at_ms for key in self._ledgers for each in self._out.get(key, {}).values()
        ]
        return min(outs, default=FOREVER)

    def _find_loss(self) -> Procedure[None]:
        """The log no longer reaches back to where we are: say so, and go on where it begins."""
        ledgers = dict(self._ledgers)
        self._stop_reading()
        keys = list(ledgers)
        first = yield from wait_for(
            self._core.list_offsets(dict.fromkeys(keys, EARLIEST), self._clock())
        )
        last = yield from wait_for(
            self._core.list_offsets(dict.fromkeys(keys, LATEST), self._clock())
        )
        self._fetcher = self._core.fetch({}, {})
        loss: PositionLost | None = None
        for key, ledger in ledgers.items():
            position, start, end = ledger.position, first[key].offset, last[key].offset
            if loss is not None:
                pass  # one at a time: if this one isn't there, either, it is found out again
            elif position < start:
                loss = PositionLost(*key, position, start)
                ledger.acknowledge(position, start)
            elif position > end:  # an operator gave up what had been acknowledged
                loss = PositionLost(*key, end, position, goes_on_at=end)
                ledger = Ledger(Committed(end, ""))
            ledger.read_to = ledger.position
            self._ledgers[key] = ledger
            self._fetcher.seek(key, ledger.position)
        if loss is not None:
            raise loss

    def _news(self, until_ms: float) -> Procedure[None]:
        """Until there is something to read, or to own, or the time is up."""
        if self._member is None:
            return  # it has stepped aside, and joins anew
        tickets: list[Ticket[Any]] = [self._member.change()]
        if self._take is not None:
            tickets.append(self._take.ticket)
        if self._ready and not self._has_room_for(self._ready[0]):  # what arrives has none, either
            self._room = self._room or Ticket()
            tickets.append(self._room)
        elif self._fetcher is not None and self._ledgers:
            tickets.append(self._fetcher.arrival())
        yield Wait(tuple(tickets), min(until_ms, self._clock() + _STILL_HERE_MS))

    # Committing

    def _acknowledge(self, records: Iterable[ConsumedRecord]) -> None:
        for record in records:
            self._ledgers[record[:2]].acknowledge(record.offset, record.offset + 1)

    def _sign(self, keys: Iterable[TopicPartition]) -> Signed:
        member = self._member
        if member is None or any(key not in self._ledgers or key in member.let_go for key in keys):
            raise self._moved()
        self._count += 1
        token = f"{member.membership.member_id[:16]}.{self._count}"
        positions = {key: self._ledgers[key].committed(token) for key in keys}
        return Signed(token, member.membership, positions)

    def _moved(self) -> KafkaError:
        return KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, f"{self.group}: partitions have moved")

    def _commit(self, messages: list[Message], keys: Iterable[TopicPartition]) -> None:
        signed = self._sign(dict.fromkeys(keys))
        _, membership, positions = signed
        ticket = self._core.groups.commit(self.group, membership, positions, self._clock())
        self._take = _Take(messages, signed, ticket)

    def _settle(self, until_ms: float) -> Procedure[None]:
        """If a commit is under way, find out what became of it; if it went through, the messages
        are owed to whoever asks next."""
        take = self._take
        if take is None:
            return
        if not take.ticket.done:
            yield Wait((take.ticket,), max(until_ms, self._clock() + _PATIENCE_MS))
            if not take.ticket.done:
                return
        error = take.ticket.error
        if error is not None and not isinstance(error, KafkaError):
            raise error
        committed = set(take.signed.positions)
        if error is not None:
            yield from self._step_aside(error)
            # One partition may have been refused, and the others not.
            committed = yield from self._committed_under(take.signed)
            for key in take.signed.positions:
                self._unload(key)
        self._take = None
        self._owed += [it for it in take.messages if (it.topic, it.partition) in committed]
        if error is not None and not (committed or error.code.retriable or error.code in _FENCED):
            raise error

    def _step_aside(self, error: KafkaError) -> Procedure[None]:
        """Make sure that the commit that failed can't have an effect any more."""
        member = self._member
        if member is None:
            return
        if error.code is ErrorCode.NETWORK_EXCEPTION:
            try:
                yield from wait_for(self._core.leave(member, self._clock()))
            except KafkaError as refusal:
                if refusal.code not in _GONE:
                    raise
            self._dissolve()
        elif error.code in _FENCED:
            change = member.change()
            member.fenced(error.code, self._clock())
            yield Wait((change,), self._clock() + _PATIENCE_MS)

    def _committed_under(self, signed: Signed) -> Procedure[set[TopicPartition]]:
        found = yield from wait_for(
            self._core.groups.positions(self.group, signed.positions, self._clock())
        )
        return {key for key, each in found.items() if signed.token in Ledger(each).tokens}


def _keys(records: Iterable[ConsumedRecord]) -> list[TopicPartition]:
    return [record[:2] for record in records]
