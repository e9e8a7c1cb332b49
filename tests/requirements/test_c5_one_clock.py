"""C5: one clock without a clock server. A sender's messages keep their order, and all have one."""

from __future__ import annotations

import threading
from collections import defaultdict
from contextlib import ExitStack

import sapwood
from sapwood.client import KafkaClient
from sapwood.client.admin import NewTopic
from tests.helpers import unique

SENDERS = 10
PUTS = 24
OFF_S = 288
PATIENCE_S = 60.0


class Sender(threading.Thread):
    """Puts its numbered messages into the topics in turn, each once the one before is safe."""

    def __init__(self, place: str, name: str, topics: list[str]) -> None:
        super().__init__(name=name)
        self._place = place
        self._topics = topics
        self.acknowledged: list[str] = []
        self.is_half_way = threading.Event()

    def run(self) -> None:
        with sapwood.Client(self._place, id=self.name) as client:
            for number in range(PUTS):
                text = f"{self.name}/{number}"
                topic = self._topics[number % len(self._topics)]
                client.put(topic, text, id=text)
                self.acknowledged.append(text)
                if number == PUTS // 2:
                    self.is_half_way.set()
        self.is_half_way.set()


class Reader(threading.Thread):
    def __init__(self, place: str, topics: list[str], count: int) -> None:
        super().__init__()
        self._place = place
        self._topics = topics
        self._count = count
        self.has_started = threading.Event()
        self.seen: list[str] = []

    def run(self) -> None:
        with sapwood.Client(self._place) as client:
            merged = client.merged(*self._topics, timeout=PATIENCE_S)
            self.has_started.set()
            for message in merged:
                self.seen.append(message.text)
                if len(self.seen) == self._count:
                    return


def test_c5_two_merged_readers_see_one_sequence_while_clocks_jump_and_a_leader_dies() -> None:
    topics = [unique(name) for name in ("orders", "payments", "idle")]
    busy = topics[:2]
    with sapwood.Cluster(nodes=3, edges=2) as cluster, ExitStack() as stack:
        cluster.create_topics(dict.fromkeys(topics, 2))
        cluster.restart(1, clock_offset_s=OFF_S)
        cluster.restart(2, clock_offset_s=-OFF_S)
        cluster.wait_healthy()
        edges = [cluster.edge_address(0), cluster.edge_address(1)]
        # Two partitions of the third topic are never written to: they hold nobody up.
        readers = [Reader(it, topics, SENDERS * PUTS) for it in edges]
        for reader in readers:
            reader.start()
            stack.callback(reader.join)
            assert reader.has_started.wait(PATIENCE_S)
        places = [cluster.bootstrap, *edges]
        senders = [Sender(places[it % 3], f"s{it}", busy) for it in range(SENDERS)]
        for sender in senders:
            sender.start()
            stack.callback(sender.join)
        for sender in senders[:3]:
            assert sender.is_half_way.wait(PATIENCE_S)
        # The node whose clock is ahead dies, and comes back with one that is as far behind.
        cluster.kill(1)
        cluster.restart(1, clock_offset_s=-OFF_S)
        for thread in (*senders, *readers):
            thread.join(2 * PATIENCE_S)

        first, second = (reader.seen for reader in readers)
        assert first == second
        assert sorted(first) == sorted(it for sender in senders for it in sender.acknowledged)
        assert len(first) == SENDERS * PUTS
        by_sender: dict[str, list[int]] = defaultdict(list)
        for text in first:
            name, _, number = text.partition("/")
            by_sender[name].append(int(number))
        assert by_sender == {sender.name: list(range(PUTS)) for sender in senders}

        with sapwood.Client(cluster.bootstrap) as client:
            again = client.merged(*topics, start="earliest", stop="now")
            assert [message.text for message in again] == first
        _check_append_times(cluster.bootstrap, busy)


def _check_append_times(bootstrap: str, topics: list[str]) -> None:
    """Within a partition they only grow, whoever led it, and whatever its host's clock showed."""
    ranges = {(topic, index): (0, 10_000) for topic in topics for index in range(2)}
    with KafkaClient(bootstrap) as client:
        for found in client.append_times(ranges).values():
            times = [it.time for it in found]
            assert times == sorted(set(times))


def test_c5_what_a_client_puts_comes_after_what_it_has_got_whatever_clocks_show() -> None:
    questions, answers = unique("questions"), unique("answers")
    with sapwood.Cluster(nodes=3, edges=2) as cluster:
        cluster.create_topics({questions: 3, answers: 3})
        cluster.restart(0, clock_offset_s=OFF_S)
        cluster.restart(1, clock_offset_s=-OFF_S)
        cluster.wait_healthy()
        with (
            sapwood.Client(cluster.edge_address(0), id="asks") as asking,
            sapwood.Client(cluster.edge_address(1), id="answers") as answering,
        ):
            answering.subscribe(questions)
            asking.subscribe(answers)
            for number in range(12):
                asking.put(questions, f"{number}?", key=f"q{number}")
                question = answering.get(questions, timeout=PATIENCE_S)
                assert question is not None
                answering.put(answers, f"{question.text[:-1]}!", key=f"a{number}")
                assert asking.get(answers, timeout=PATIENCE_S) is not None
            found = asking.merged(questions, answers, start="earliest", stop="now")
            expected = [f"{number}{mark}" for number in range(12) for mark in "?!"]
            assert [message.text for message in found] == expected
        _check_puts(cluster)


def _check_puts(cluster: sapwood.Cluster) -> None:
    """Nothing but the client connects these two logs, one of a fast clock and one of a slow one."""
    names = [unique("alone") for _ in range(9)]
    with KafkaClient(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(name, 1, 1) for name in names])
    cluster.wait_healthy()
    ahead, behind = (next(it for it in names if cluster.leader(it) == node) for node in (0, 1))
    with sapwood.Client(cluster.bootstrap) as client:
        for number in range(20):
            client.put((ahead, behind)[number % 2], f"{number}")
        found = client.merged(ahead, behind, start="earliest", stop="now")
        assert [message.text for message in found] == [f"{number}" for number in range(20)]


def test_c5_a_merged_reader_goes_on_from_a_position_and_takes_up_added_partitions() -> None:
    with sapwood.Cluster(nodes=3, edges=1) as cluster:
        for place in (cluster.bootstrap, cluster.edge_address(0)):
            _check_growing(cluster, place)


def _check_growing(cluster: sapwood.Cluster, place: str) -> None:
    topic, other = unique("grows"), unique("other")
    cluster.create_topics({topic: 1, other: 1})
    with (
        sapwood.Client(place) as client,
        sapwood.Client(place) as second,
        KafkaClient(place) as admin,
    ):
        merged = client.merged(topic, other, timeout=PATIENCE_S)
        for number in range(4):
            client.put(topic, f"{number}", key=f"{number}")
        assert [next(merged).text for _ in range(2)] == ["0", "1"]
        position = merged.position
        admin.create_partitions({topic: 4})
        for number in range(4, 12):
            second.put(topic, f"{number}", key=f"{number}")
        assert [next(merged).text for _ in range(10)] == [f"{it}" for it in range(2, 12)]
        resumed = second.merged(topic, other, start=position, stop="now")
        assert [it.text for it in resumed] == [f"{it}" for it in range(2, 12)]
