"""The judge: what the topics hold and what the clients noted, held against the promises. Pure.

A publisher that has noted `stored` was promised that its message is there once, behind its earlier
ones. A subscriber was promised every message from where its subscription began to where it ended,
once, and those of one publisher in order; if it acknowledges by itself, a message comes again until
it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from sapwood.chaos.notes import Note


class Record(NamedTuple):
    """A message as it lies in a topic."""

    topic: str
    partition: int
    offset: int
    publisher: str
    number: int


@dataclass(slots=True)
class Verdict:
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    out_of_order: list[str] = field(default_factory=list)
    undelivered: list[str] = field(default_factory=list)
    """Of subscribers that didn't get to the end of what was kept for them in time."""
    stored: int = 0
    got: int = 0
    again: int = 0
    """Messages that came again, as they must, because nobody had acknowledged them."""
    in_the_window: int = 0
    """Messages that a crash took between the acknowledgement and the subscriber's note of them."""
    crashes: int = 0

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.doubled or self.out_of_order or self.undelivered)


class Subscription:
    """From one `subscribed` to its `unsubscribes`, or to the end."""

    def __init__(self, note: Note) -> None:
        self.topic = note.topic
        self.starts = note.positions
        self.began_at_s = note.at_s
        self.got: list[Note] = []
        self.was_acknowledged: set[int] = set()
        """Which of these had been acknowledged when it came, counted from 0."""
        self.windows: list[tuple[int, int]] = []
        """Of each crash during which it had asked for a message: how many it had got when it asked,
        and when that process began again. Another process of it may have got some in between."""
        self.is_over = False


def judge(
    records: Iterable[Record],
    publishers: Mapping[str, Sequence[Note]],
    subscribers: Mapping[str, Sequence[Note]],
    acknowledging: Iterable[str],
) -> Verdict:
    """`acknowledging`: the subscribers that acknowledge each message by themselves."""
    verdict = Verdict()
    kept = list(records)
    begun = _judge_publishers(verdict, kept, publishers)
    by_topic: dict[str, list[Record]] = {}
    for record in kept:
        by_topic.setdefault(record.topic, []).append(record)
    acknowledging = set(acknowledging)
    for name, notes in subscribers.items():
        last = {note.process: note.what for note in notes}
        verdict.crashes += max(0, sum(note.what == "began" for note in notes) - len(last))
        has_ended = bool(last) and set(last.values()) == {"ended"}
        for subscription in subscriptions(notes):
            present = by_topic.get(subscription.topic, [])
            _Hearing(verdict, name, subscription, present, begun).judge(
                is_acknowledging=name in acknowledging, has_ended=has_ended
            )
    return verdict


def _judge_publishers(
    verdict: Verdict, kept: Sequence[Record], publishers: Mapping[str, Sequence[Note]]
) -> dict[tuple[str, int], float]:
    """When each put began, too."""
    copies = Counter((record.publisher, record.number) for record in kept)
    begun: dict[tuple[str, int], float] = {}
    for name, notes in publishers.items():
        verdict.crashes += max(0, sum(note.what == "began" for note in notes) - 1)
        for note in notes:
            if note.what == "puts":
                begun.setdefault((name, note.number), note.at_s)
            elif note.what == "stored":
                verdict.stored += 1
                if not copies[name, note.number]:
                    verdict.lost.append(f"{note.topic}: {name} {note.number} was stored, and isn't")
    for (name, number), count in copies.items():
        if count > 1:
            verdict.doubled.append(f"{name} {number} is stored {count} times")
    last: dict[tuple[str, str], Record] = {}
    for record in kept:
        before = last.get((record.topic, record.publisher))
        if before is not None and (
            before.number > record.number or before.partition != record.partition
        ):
            verdict.out_of_order.append(f"{_named(record)} lies behind {_named(before)}")
        last[record.topic, record.publisher] = record
    return begun


def merged(*lives: Iterable[Note]) -> list[Note]:
    """The notes of a subscriber's processes, which live at the same time, as one life.

    By their clock, which is the same; of what is noted at the same time each order will do.
    """
    labelled = (
        msgspec.structs.replace(note, process=process)
        for process, notes in enumerate(lives)
        for note in notes
    )
    return sorted(labelled, key=lambda note: note.at_s)


def subscriptions(notes: Sequence[Note]) -> Iterator[Subscription]:
    """A subscriber's life, told again."""
    current: dict[str, Subscription] = {}
    found: list[Subscription] = []
    acknowledged: dict[str, set[tuple[int, int]]] = {}
    asking: dict[tuple[int, str], int] = {}
    """By process and topic, how many messages of the topic had been got when it asked."""
    for note in notes:
        topic = note.topic
        match note.what:
            case "began":
                for process, each in [it for it in asking if it[0] == note.process]:
                    asked = asking.pop((process, each))
                    if each in current:
                        count = len(current[each].got)
                        current[each].windows.append((min(asked, count), count))
            case "subscribed" if topic not in current:
                current[topic] = Subscription(note)
                found.append(current[topic])
                acknowledged[topic] = set()
            case "unsubscribes" if topic in current:
                current.pop(topic).is_over = True
            case "asks" if topic in current:
                asking.setdefault((note.process, topic), len(current[topic].got))
            case "nothing":
                asking.pop((note.process, topic), None)
            case "got" if topic in current:
                asking.pop((note.process, topic), None)
                if (note.partition, note.offset) in acknowledged[topic]:
                    current[topic].was_acknowledged.add(len(current[topic].got))
                current[topic].got.append(note)
            case "acknowledged" if topic in current:
                acknowledged[topic].add((note.partition, note.offset))
    yield from found


class _Hearing:
    """One subscription before the judge."""

    def __init__(
        self,
        verdict: Verdict,
        name: str,
        subscription: Subscription,
        present: Sequence[Record],
        begun: Mapping[tuple[str, int], float],
    ) -> None:
        self._verdict = verdict
        self._name = name
        self._subscription = subscription
        self._present = present
        self._begun = begun

    def judge(self, *, is_acknowledging: bool, has_ended: bool) -> None:
        first = self._judge_repeats(is_acknowledging)
        self._judge_order(first)
        missing = self._missing(first, has_ended)
        if not is_acknowledging:
            missing = self._excuse(missing)
        self._verdict.lost += [f"{self._name} never got {_named(each)}" for each in missing]

    def _judge_repeats(self, is_acknowledging: bool) -> dict[tuple[int, int], Note]:
        """What was got for the first time, in its order."""
        first: dict[tuple[int, int], Note] = {}
        for index, note in enumerate(self._subscription.got):
            place = note.partition, note.offset
            self._verdict.got += 1
            if place not in first:
                first[place] = note
            elif is_acknowledging and index not in self._subscription.was_acknowledged:
                self._verdict.again += 1
            else:
                self._verdict.doubled.append(f"{self._name} got {_named(note)} again")
        return first

    def _judge_order(self, first: Mapping[tuple[int, int], Note]) -> None:
        last: dict[str, Note] = {}
        for note in first.values():
            before = last.get(note.publisher)
            if before is not None and before.number > note.number:
                self._verdict.out_of_order.append(
                    f"{self._name} got {_named(note)} after {_named(before)}"
                )
            last[note.publisher] = note

    def _missing(self, first: Mapping[tuple[int, int], Note], has_ended: bool) -> list[Record]:
        subscription = self._subscription
        reached: dict[int, int] = {}
        for partition, offset in first:
            reached[partition] = max(offset, reached.get(partition, -1))
        missing = []
        for record in self._present:
            if (record.partition, record.offset) in first:
                continue
            was_put_later = (
                self._begun.get((record.publisher, record.number), 0.0) > subscription.began_at_s
            )
            start = subscription.starts.get(record.partition, 0)
            if record.offset < start and not was_put_later:
                continue
            if record.offset < reached.get(record.partition, -1):
                missing.append(record)
            elif subscription.is_over:
                continue  # it left before it came to this
            elif has_ended:
                missing.append(record)
            else:
                self._verdict.undelivered.append(f"{self._name} waits for {_named(record)}")
        return missing

    def _excuse(self, missing: Sequence[Record]) -> list[Record]:
        """Give each crash the one message that it may have taken; what is left has no excuse.

        A crash can have taken a message only if it lies between what was got from its partition
        before and after the crash. As many as possible are excused: if a crash is given to one
        already, that one looks for another.
        """
        got = self._subscription.got
        windows = self._subscription.windows
        chances: list[list[int]] = []
        for record in missing:
            same = [(index, note) for index, note in enumerate(got)
                    if note.partition == record.partition]  # fmt: skip
            earliest = max((i + 1 for i, note in same if note.offset < record.offset), default=0)
            latest = min((i for i, note in same if note.offset > record.offset), default=len(got))
            chances.append(
                [
                    number
                    for number, (asked, began) in enumerate(windows)
                    if began >= earliest and asked <= latest
                ]
            )
        taken_by: dict[int, int] = {}

        def is_excused(which: int, tried: set[int]) -> bool:
            for window in chances[which]:
                if window in tried:
                    continue
                tried.add(window)
                if window not in taken_by or is_excused(taken_by[window], tried):
                    taken_by[window] = which
                    return True
            return False

        lost = [it for which, it in enumerate(missing) if not is_excused(which, set())]
        self._verdict.in_the_window += len(taken_by)
        return lost


def _named(item: Record | Note) -> str:
    place = f"{item.topic} {item.partition}@{item.offset}"
    return f"{place} ({item.publisher} {item.number})"
