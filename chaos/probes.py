"""A probe per node: asks that node alone, again and again, and notes what it dares to answer.

A deposed leader that doesn't know yet must neither accept a record that won't stay, nor tell an end
that others have passed. Each probe's record is sent once only, under a name of its own: where it
lands among others, if its answer was lost, is nobody's promise.
"""

import itertools
import random
import threading
from collections import Counter

from chaos.direct import Direct, NoAnswer, Refused
from chaos.history import End, Recorder, Send, from_the_wire, on_the_wire
from chaos.readers import Partition, record_out_of_range, record_reads

EVERY_S = 0.05


class Probe(threading.Thread):
    def __init__(
        self,
        recorder: Recorder,
        node: int,
        address: str,
        partitions: list[Partition],
        chance: random.Random,
    ) -> None:
        super().__init__(name=f"probe-{node}", daemon=True)
        self._recorder = recorder
        self._node = node
        self._direct = Direct(address)
        self._partitions = partitions
        self._chance = chance
        self._numbers = itertools.count()
        self._positions: Counter[Partition] = Counter()
        self._ended = threading.Event()

    def run(self) -> None:
        acts = (self._send, self._ask_end, self._ask_end, self._read)
        while not self._ended.wait(EVERY_S * self._chance.random() * 2):
            place = self._chance.choice(self._partitions)
            self._chance.choice(acts)(*place)
        self._direct.close()

    def finish(self) -> None:
        self._ended.set()
        self.join()

    def _send(self, topic: str, partition: int) -> None:
        send = Send(
            client=self.name,
            topic=topic,
            partition=partition,
            value=f"{self.name}.{next(self._numbers)}:0",
            at=self._recorder.now(),
        )
        try:
            send.offset = self._direct.produce(topic, partition, on_the_wire(send.value, 1))
            send.outcome, send.node = "ok", self._node
        except Refused as error:
            send.outcome, send.node, send.error = "fail", self._node, str(error)
        except NoAnswer as error:
            send.error = str(error)
        if send.outcome != "unknown":
            send.done = self._recorder.now()
        self._recorder.add(send)

    def _ask_end(self, topic: str, partition: int) -> None:
        end = End(client=self.name, topic=topic, partition=partition, at=self._recorder.now())
        try:
            end.offset = self._direct.latest(topic, partition)
            end.outcome, end.node = "ok", self._node
        except Refused as error:
            end.outcome, end.node, end.error = "fail", self._node, str(error)
        except NoAnswer:
            return
        end.done = self._recorder.now()
        self._recorder.add(end)

    def _read(self, topic: str, partition: int) -> None:
        place = (topic, partition)
        at = self._recorder.now()
        offset = self._positions[place]
        try:
            found = self._direct.fetch(topic, partition, offset)
        except Refused as error:
            if str(error) == "OFFSET_OUT_OF_RANGE":
                record_out_of_range(self._recorder, self.name, place, offset, at, node=self._node)
            return
        except NoAnswer:
            return
        records = [(offset, from_the_wire(value)) for offset, value in found.records]
        record_reads(self._recorder, self.name, {place: records}, at, node=self._node)
        self._positions[place] = found.next_offset
