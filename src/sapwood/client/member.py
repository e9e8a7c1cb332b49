"""A member of a consumer group of the newer protocol: the coordinator decides who owns what.

    JOINING --heartbeat answered--> epoch n --fenced or unknown--> JOINING
                                    any     --leave-------------> gone

Every heartbeat says all that this member knows, so that one may be lost. What the coordinator
takes away is let go of as soon as `is_busy` allows, and only the heartbeat after that says so:
until then nobody else gets it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sapwood.client.calls import GROUP, Call, Coordinator, Router
from sapwood.client.cluster import ClusterView, TopicPartition
from sapwood.client.config import ClientConfig
from sapwood.client.effects import Effects, Ticket
from sapwood.client.errors import error_for
from sapwood.client.groups import Membership
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError

_JOINING, _LEAVING = 0, -1
_FENCED = (
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
)
_REBALANCE_TIMEOUT_MS = 30_000
_IDLE_MS = 30_000


class Member:
    def __init__(
        self,
        config: ClientConfig,
        view: ClusterView,
        router: Router,
        effects: Effects,
        group: str,
        topics: Sequence[str],
        member_id: str,
    ) -> None:
        self._config = config
        self._view = view
        self._router = router
        self._effects = effects
        self._group = group
        self._topics = list(topics)
        self.membership = Membership(member_id, _JOINING)
        self.owned: frozenset[TopicPartition] = frozenset()
        # Since whoever uses this looked last, and cleared it: what is owned again by now may have
        # had another owner in between.
        self.let_go: set[TopicPartition] = set()
        self.is_busy = False
        self.failure: Exception | None = None
        self._assigned: frozenset[TopicPartition] = frozenset()
        self._heartbeat: Ticket[Struct] | None = None
        self._next_ms = float("-inf")
        self._used_ms = float("inf")  # until it is used for the first time
        self._change: Ticket[None] | None = None

    def change(self) -> Ticket[None]:
        """Settled when `owned`, the epoch or `failure` changes next."""
        self._change = self._change or Ticket()
        return self._change

    def poll(self, now_ms: float) -> None:
        if self.failure is not None:
            return
        if self._heartbeat is not None and self._heartbeat.done:
            ticket, self._heartbeat = self._heartbeat, None
            self._next_ms = now_ms + self._config.pause_ms(0)
            try:
                self._absorb(ticket.result(), now_ms)
            except KafkaError as error:
                self._failed(error)
        if not self.is_busy:
            self.adopt(now_ms)
        if self._heartbeat is None and self.failure is None and self._due_ms() <= now_ms:
            self._heartbeat = self._beat(self.membership.epoch, now_ms)

    def use(self, now_ms: float) -> None:
        """Somebody asks for records, and is between two steps: a good moment to `adopt`."""
        self._used_ms = now_ms
        self.adopt(now_ms)

    def adopt(self, now_ms: float) -> None:
        """Let go of what was taken away, and take what was given."""
        if self.owned != self._assigned:
            self.let_go |= self.owned - self._assigned
            self.owned = self._assigned
            self._next_ms = now_ms  # those who wait for what we let go of wait for this
            self._notify()

    def moments(self) -> Iterator[float]:
        if self.failure is None and self._heartbeat is None:
            yield self._due_ms()

    def _due_ms(self) -> float:
        """Whoever asks for nothing any more must not keep records from others."""
        is_idle = not self.is_busy and self._next_ms > self._used_ms + _IDLE_MS
        return float("inf") if is_idle else self._next_ms

    def leave(self, now_ms: float) -> Ticket[Struct]:
        """Once this is answered, nothing that this member has sent can have an effect any more."""
        self._fail(KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"left group {self._group}"))
        return self._beat(_LEAVING, now_ms)

    @property
    def is_settled(self) -> bool:
        """Whether we have heard what is ours."""
        return self.membership.epoch > _JOINING and self.owned == self._assigned

    def fenced(self, code: ErrorCode, now_ms: float) -> None:
        """Somebody was told so: begin anew, or hear of the newer epoch."""
        if code is ErrorCode.STALE_MEMBER_EPOCH:
            self._next_ms = now_ms
        elif self.failure is None:
            self._rejoin(now_ms)

    def _rejoin(self, now_ms: float) -> None:
        self.membership = self.membership._replace(epoch=_JOINING)
        self.let_go |= self.owned
        self.owned = self._assigned = frozenset()
        self._heartbeat = None  # what is still under way was said by somebody who is no more
        self._next_ms = now_ms
        self._notify()

    def close(self, error: Exception) -> None:
        self._fail(error)

    def _beat(self, epoch: int, now_ms: float) -> Ticket[Struct]:
        owned: dict[bytes, list[int]] = {}
        for topic, partition in sorted(self.owned):
            known = self._view.topics.get(topic)
            if known is not None:
                owned.setdefault(known.topic_id, []).append(partition)
        message = Struct(
            group_id=self._group,
            member_id=self.membership.member_id,
            member_epoch=epoch,
            instance_id=None,
            rack_id=None,
            rebalance_timeout=_REBALANCE_TIMEOUT_MS,
            subscribed_topic_names=self._topics,
            subscribed_topic_regex=None,
            server_assignor=None,
            topic_partitions=[
                Struct(topic_id=topic_id, partitions=each) for topic_id, each in owned.items()
            ],
        )
        ticket: Ticket[Struct] = Ticket()
        self._router.submit(
            Call(
                Api.CONSUMER_GROUP_HEARTBEAT,
                message,
                Coordinator(GROUP, self._group),
                self._read,
                ticket,
                now_ms,
                now_ms + self._config.api_timeout_ms,
            )
        )
        return ticket

    def _read(self, answer: Struct) -> Struct:
        if answer.error_code:
            raise error_for(answer.error_code, f"group {self._group}", answer.error_message)
        return answer

    def _absorb(self, answer: Struct, now_ms: float) -> None:
        if answer.member_epoch != self.membership.epoch:
            self.membership = self.membership._replace(epoch=answer.member_epoch)
            self._notify()
        self._next_ms = now_ms + answer.heartbeat_interval
        if answer.assignment is None:
            return
        names = {each.topic_id: name for name, each in self._view.topics.items()}
        given = answer.assignment.topic_partitions
        if any(each.topic_id not in names for each in given):
            self._view.invalidate()
        self._assigned = frozenset(
            (names[each.topic_id], partition)
            for each in given
            if each.topic_id in names
            for partition in each.partitions
        )

    def _failed(self, error: KafkaError) -> None:
        if error.code in _FENCED:
            self._rejoin(self._next_ms if self.membership.epoch == _JOINING else float("-inf"))
        elif not error.code.retriable:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.failure = self.failure or error
        self._notify()

    def _notify(self) -> None:
        if self._change is not None:
            ticket, self._change = self._change, None
            self._effects.succeed(ticket, None)
