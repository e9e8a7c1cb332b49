"""A publisher that crashes, stalls, loses acknowledgements, and repeats what it isn't sure of."""

from __future__ import annotations

import time

from sapwood.chaos.orders import Orders, Troublemaker
from sapwood.client import Client

_REPEAT_CHANCE = 0.03


class Publisher(Troublemaker):
    def __init__(self, orders: Orders, client: Client) -> None:
        super().__init__(orders)
        self._client = client

    def run(self) -> None:
        number = self._finish()
        while not self.is_calm:
            self.may_crash()
            self.may_stall()
            topic = self.chance.choice(self.orders.topics)
            if self.orders.plant == "overtake" and self.chooses(0.1):
                self._put(topic, number + 1)
                self._put(topic, number)
                number += 2
            else:
                self._put(topic, number)
                number += 1
            time.sleep(self.chance.uniform(0, 2 / self.orders.rate))
        self.notes.write("ended")

    def _finish(self) -> int:
        """Put again what an earlier process may not have; the number of the next message."""
        unsure = {}
        number = 0
        for note in self.notes.earlier:
            if note.what == "puts":
                unsure[note.number] = note.topic
                number = max(number, note.number + 1)
            elif note.what == "stored":
                unsure.pop(note.number, None)
        for each, topic in unsure.items():
            self._put(topic, each)
        return number

    def _put(self, topic: str, number: int) -> None:
        name = self.orders.name
        self.notes.write("puts", topic=topic, number=number)
        message_id = None if self.orders.plant == "forget-ids" else f"{name}-{number}"
        stored = self._client.put(topic, f"{name} {number}", id=message_id)
        self.may_crash("forget-ids")
        if self.chooses(_REPEAT_CHANCE):  # as if that acknowledgement had been lost
            stored = self._client.put(topic, f"{name} {number}", id=message_id)
        self.notes.write(
            "stored", topic=topic, number=number, partition=stored.partition, offset=stored.offset
        )
