"""A durable subscriber that comes and goes, crashes, stalls and drops acknowledgements."""

from __future__ import annotations

import time

from sapwood.chaos.orders import Orders, Troublemaker
from sapwood.client import Client, Message, NotAcknowledged

_ASK_S = 0.1
_SURE_S = 4.0  # a get that overstays its time by so much may have a commit under way
_ACK_TIMEOUT_S = 2.0
_COME_OR_GO_CHANCE = 0.01
_FORGET_CHANCE = 0.05
_STALE_CHANCE = 0.05
_MANUAL_PLANTS = ("keep-late", "acknowledge-late", "stale-owner")


class Subscriber(Troublemaker):
    def __init__(self, orders: Orders, client: Client) -> None:
        super().__init__(orders)
        self._client = client
        self._subscribed: dict[str, None] = {}
        # How it asks, and what it claims to be, are different things with a planted bug.
        self._is_manual = orders.acknowledges or orders.plant in _MANUAL_PLANTS

    def run(self) -> None:
        self._finish()
        if self.orders.is_shared:
            for topic in self.orders.topics:
                if topic not in self._subscribed:
                    self._subscribe(topic, "earliest")
        while not self.is_draining:
            self.may_crash()
            self.may_stall()
            if not self._subscribed or (
                not self.orders.is_shared and self.chooses(_COME_OR_GO_CHANCE)
            ):
                self._come_or_go()
            self._get(self.chance.choice(list(self._subscribed)))
        while waiting := [topic for topic in self._subscribed if self._is_pending(topic)]:
            for topic in waiting:
                while self._get(topic):
                    pass
        self.notes.write("ended")

    def _finish(self) -> None:
        """Take up what an earlier process had subscribed to, or was about to."""
        last = {
            note.topic: note
            for note in self.notes.earlier
            if note.what in ("subscribes", "subscribed", "unsubscribes", "unsubscribed")
        }
        for topic, note in last.items():
            if note.what == "subscribed":
                self._subscribed[topic] = None
            elif note.what == "subscribes":
                self._subscribe(topic, note.start)
            elif note.what == "unsubscribes":
                self._unsubscribe(topic)

    def _come_or_go(self) -> None:
        """Change one's mind about a random part of the topics, and keep one at least."""
        for topic in self.chance.sample(
            self.orders.topics, self.chance.randint(1, len(self.orders.topics))
        ):
            if topic not in self._subscribed:
                self._subscribe(topic, self.chance.choice(["now", "earliest"]))
            elif len(self._subscribed) > 1:
                self._unsubscribe(topic)

    def _subscribe(self, topic: str, start: str) -> None:
        self.notes.write("subscribes", topic=topic, start=start)
        self._client.subscribe(topic, "now" if start == "now" else "earliest")
        self.may_crash()
        positions = {
            each.partition: each.position
            for each in self._client.pending(topic)
            if each.subscriber == self.orders.name
        }
        self.notes.write("subscribed", topic=topic, positions=positions)
        self._subscribed[topic] = None

    def _unsubscribe(self, topic: str) -> None:
        self.notes.write("unsubscribes", topic=topic)
        self._subscribed.pop(topic, None)
        self._client.unsubscribe(topic)
        self.may_crash()
        self.notes.write("unsubscribed", topic=topic)

    def _get(self, topic: str) -> bool:
        self.notes.write("asks", topic=topic)
        asked_at = time.monotonic()
        message = self._client.get(
            topic,
            _ASK_S,
            ack="manual" if self._is_manual else "auto",
            ack_timeout=_ACK_TIMEOUT_S,
        )
        if message is None:
            if time.monotonic() < asked_at + _SURE_S:
                self.notes.write("nothing", topic=topic)
            return False
        self.may_crash(is_delicate=True)
        if self.orders.plant == "stale-owner" and self.chooses(_STALE_CHANCE):
            self.stall(5.0, 10.0)
        if self.orders.plant == "keep-late":
            self._acknowledge(message)
            self.may_crash("keep-late")
            self._keep(message)
        else:
            self._keep(message)
            self.may_crash("acknowledge-late")
            if self._is_manual and not self.chooses(_FORGET_CHANCE):
                self._acknowledge(message)
        return True

    def _keep(self, message: Message) -> None:
        publisher, number = message.text.split()
        self.notes.write(
            "got",
            topic=message.topic,
            partition=message.partition,
            offset=message.offset,
            publisher=publisher,
            number=int(number),
        )

    def _acknowledge(self, message: Message) -> None:
        try:
            message.ack()
        except NotAcknowledged:
            return  # it comes again
        self.may_crash()
        self.notes.write(
            "acknowledged",
            topic=message.topic,
            partition=message.partition,
            offset=message.offset,
        )

    def _is_pending(self, topic: str) -> bool:
        pending = self._client.pending(topic)
        return any(each.lag for each in pending if each.subscriber == self.orders.name)
