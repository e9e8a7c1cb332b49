"""What a history must not contain. Pure: a history in, problems out, an empty list if all is well.

The readings after healing (`final`) say what the log is. Against them stand the acknowledgements,
everything that was read on the way, and every node's own copy.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from chaos.history import End, History, Read

Partition = tuple[str, int]
Records = list[tuple[int, str]]  # (offset, value), as they were read

# What a node that was paused may still believe, and do, once it runs again.
AFTER_PAUSE_S = 30.0
# Faults that destroy a copy: with a single replica nobody else has it.
DAMAGING = {"flip", "flip-running"}
# During which no client may be refused anything: everything that is moved is moved under way.
GENTLE = {"add", "drain", "join", "empty"}


class Problem(NamedTuple):
    kind: str
    place: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind} at {self.place}: {self.text}"


def lost(history: History) -> list[Problem]:
    """Acknowledged, but not there."""
    finals = _finals(history)
    excused = _excused(history)
    found = []
    for reader, logs in finals.items():
        there = {key: {value for _, value in records} for key, records in logs.items()}
        for send in history.sends:
            key = (send.topic, send.partition)
            if send.outcome != "ok" or key in excused or key not in there:
                continue  # a partition that wasn't read at all is told by `unreadable`
            if send.value not in there[key]:
                found.append(
                    Problem(
                        "lost",
                        _at(key, send.offset),
                        f"{send.value}, acknowledged at {send.done} s by {_node(send.node)}, "
                        f"wasn't found by {reader}",
                    )
                )
    return found


def unreadable(history: History) -> list[Problem]:
    """A partition with acknowledged records that couldn't be read after healing."""
    excused = _excused(history)
    found = [
        Problem("unreadable", _at((it.topic, it.partition)), it.reason)
        for it in history.offline
        if (it.topic, it.partition) not in excused
    ]
    written = {(it.topic, it.partition) for it in history.sends if it.outcome == "ok"}
    for reader, logs in _finals(history).items():
        found += [
            Problem("unreadable", _at(key), f"{reader} didn't come to its end")
            for key in sorted(written - logs.keys() - excused)
        ]
    if written - excused and not _finals(history):
        found.append(Problem("unreadable", "everywhere", "nobody read the log at the end"))
    return found


def doubled(history: History) -> list[Problem]:
    """Sent once, there twice."""
    found = []
    for reader, logs in _finals(history).items():
        places: dict[str, list[str]] = defaultdict(list)
        counts = Counter(value for records in logs.values() for _, value in records)
        twice = {value for value, count in counts.items() if count > 1}
        for key, records in logs.items():
            for offset, value in records:
                if value in twice:
                    places[value].append(_at(key, offset))
        found += [
            Problem("doubled", where[0], f"{value} is also at {where[1]}, says {reader}")
            for value, where in places.items()
        ]
    return found


def reordered(history: History) -> list[Problem]:
    """Two records of one producer that changed places within a partition."""
    found = []
    for reader, logs in _finals(history).items():
        for key, records in logs.items():
            last: dict[str, int] = {}
            for offset, value in records:
                producer, _, number = value.rpartition(":")
                if not number.isdigit():
                    continue  # `invented` tells of it
                before = last.get(producer, -1)
                if int(number) < before:
                    text = f"{value} comes after {producer}:{before}, says {reader}"
                    found.append(Problem("reordered", _at(key, offset), text))
                last[producer] = max(before, int(number))
    return found


def invented(history: History) -> list[Problem]:
    """Read by anybody at any time, but never sent, or sent somewhere else."""
    sent = {it.value: it for it in history.sends}
    found = []
    for who, key, records in _everything_read(history):
        for offset, value in records:
            origin = sent.get(value)
            if origin is None:
                text = f"{who} read {value}, which nobody sent"
            elif origin.topic != key[0] or origin.partition not in (-1, key[1]):
                text = f"{who} read {value}, sent to {_at((origin.topic, origin.partition))}"
            else:
                continue
            found.append(Problem("invented", _at(key, offset), text))
    return found


def changed(history: History) -> list[Problem]:
    """An offset whose content wasn't always the same, or that was readable and then gone."""
    contents: dict[Partition, dict[int, tuple[str, str]]] = defaultdict(dict)
    found = []

    def note(key: Partition, offset: int, value: str, who: str) -> None:
        known, by = contents[key].setdefault(offset, (value, who))
        if known != value:
            text = f"{by} says {known}, {who} says {value}"
            found.append(Problem("changed", _at(key, offset), text))

    for send in history.sends:
        if send.outcome == "ok" and send.offset >= 0:
            key = (send.topic, send.partition)
            who = f"the acknowledgement of {_node(send.node)} to {send.client} at {send.done} s"
            note(key, send.offset, send.value, who)
    for who, key, records in _everything_read(history):
        for offset, value in records:
            note(key, offset, value, who)
    excused = _excused(history)
    settled = _settled_offsets(history)
    for read in history.reads:
        key = (read.topic, read.partition)
        if key in excused or key not in settled:
            continue
        gone = [
            offset
            for offset in range(read.offset, read.offset + len(read.values))
            if not _holds(settled[key], offset)
        ]
        if gone:
            text = f"{_reader(read)} read {read.values[gone[0] - read.offset]}, later it was gone"
            found.append(Problem("changed", _at(key, gone[0]), text))
    return found


def went_back(history: History) -> list[Problem]:
    """A reader that was given an earlier offset again, or told that its place isn't there."""
    found = []
    for (client, place), reads in _by_reader(history).items():
        for before, after in pairwise(it for it in reads if it.values):
            if after.offset < before.offset + len(before.values):
                text = (
                    f"{client} was at {before.offset + len(before.values)} "
                    f"and got this from {_node(after.node)} at {after.done} s"
                )
                found.append(Problem("went back", _at(place, after.offset), text))
        found += [
            Problem("went back", _at(place, it.offset), f"{client} at {it.done} s: {it.error}")
            for it in reads
            if it.error == "OFFSET_OUT_OF_RANGE"
        ]
    return found


def stale_ends(history: History) -> list[Problem]:
    """An end that lay below what had been acknowledged, read or told before it was asked for.

    Over all nodes, so that an old leader that still answers is seen; and so for each node, too.
    """
    floors: dict[Partition, list[tuple[float, int, str]]] = defaultdict(list)
    for send in history.sends:
        if send.outcome == "ok" and send.done is not None:
            who = f"acknowledged by {_node(send.node)} at {send.done} s"
            floors[send.topic, send.partition].append((send.done, send.offset + 1, who))
    for read in history.reads:
        if read.values:
            who = f"read by {_reader(read)} at {read.done} s"
            end = read.offset + len(read.values)
            floors[read.topic, read.partition].append((read.done, end, who))
    answered = [it for it in history.ends if it.outcome == "ok" and it.done is not None]
    for told in answered:
        who = f"the end that {_node(told.node)} told at {told.done} s"
        floors[told.topic, told.partition].append((told.done or 0.0, told.offset, who))
    found = []
    for key, events in floors.items():
        events.sort(key=lambda event: event[0])
        times = [event[0] for event in events]
        highest: list[tuple[int, str]] = []
        for _, end, who in events:
            highest.append(max(highest[-1], (end, who)) if highest else (end, who))
        for told in answered:
            if (told.topic, told.partition) != key:
                continue
            known = bisect_left(times, told.at)
            if known and told.offset < highest[known - 1][0]:
                found.append(_stale(told, *highest[known - 1]))
    return found


def skipped(history: History) -> list[Problem]:
    """A reader that went past a record."""
    settled = _settled_offsets(history)
    found = []
    for (client, place), reads in _by_reader(history).items():
        offsets = settled.get(place, [])
        for before, after in pairwise(it for it in reads if it.values):
            start = bisect_left(offsets, before.offset + len(before.values))
            if offsets[start : bisect_left(offsets, after.offset)]:
                text = f"{client} went from here to {after.offset} at {after.done} s"
                found.append(Problem("skipped", _at(place, offsets[start]), text))
    return found


def diverged(history: History) -> list[Problem]:
    """Nodes whose own copies differ after healing, from each other or from what readers got."""
    copies: dict[Partition, dict[str, Records]] = defaultdict(dict)
    for copy in history.copies:
        records = copies[copy.topic, copy.partition].setdefault(_node(copy.node), [])
        records += enumerate(copy.values, copy.offset)
    for reader, logs in _finals(history).items():
        for key, records in logs.items():
            if key in copies:
                copies[key][reader] = records
    found = []
    for key, by_node in copies.items():
        (first, standard), *others = by_node.items()
        for name, records in others:
            if records == standard:
                continue
            index = next(
                (i for i, both in enumerate(zip(standard, records, strict=False))
                 if both[0] != both[1]),
                min(len(standard), len(records)),
            )  # fmt: skip
            here, there = standard[index : index + 1], records[index : index + 1]
            text = f"{first} has {here} ({len(standard)} in all), "
            text += f"{name} has {there} ({len(records)} in all)"
            found.append(Problem("diverged", _at(key), text))
    return found


def old_leaders(history: History) -> list[Problem]:
    """Accepted by a node that had been paused, and not there in the end."""
    there: dict[Partition, set[str]] = defaultdict(set)
    for logs in _finals(history).values():
        for key, records in logs.items():
            there[key].update(value for _, value in records)
    found = []
    for pause in history.faults:
        if pause.name != "pause":
            continue
        until = (pause.done if pause.done is not None else pause.at) + AFTER_PAUSE_S
        for send in history.sends:
            key = (send.topic, send.partition)
            if send.outcome != "ok" or send.node not in pause.nodes or key not in there:
                continue
            if pause.at <= (send.done or 0.0) <= until and send.value not in there[key]:
                text = (
                    f"{_node(send.node)}, paused from {pause.at} to {pause.done} s, "
                    f"accepted {send.value} at {send.done} s"
                )
                found.append(Problem("old leader", _at(key, send.offset), text))
    return found


def silent(history: History) -> list[Problem]:
    """A partition that took no record after the last fault was over."""
    over = max((it.done if it.done is not None else it.at for it in history.faults), default=0.0)
    alive = {
        (it.topic, it.partition) for it in history.sends if it.outcome == "ok" and it.at >= over
    }
    wanted = {(it.topic, it.partition) for it in history.sends if it.partition >= 0}
    return [
        Problem("silent", _at(key), f"nothing was acknowledged after the last fault, {over} s")
        for key in sorted(wanted - alive - _excused(history))
    ]


def fatal(history: History) -> list[Problem]:
    """A client that was told to give up, by its own library or by a node."""
    return [
        Problem("fatal", it.client, f"{it.error} at {it.at} s")
        for it in history.troubles
        if it.fatal
    ]


def refused(history: History) -> list[Problem]:
    """A record that a client couldn't get stored though no node was taken from it.

    Its library tries again without an end: what it tells is what it doesn't try again.
    """
    if {it.name for it in history.faults} - GENTLE:
        return []
    return [
        Problem("refused", _at((it.topic, it.partition)), f"{it.value}: {it.error or 'no answer'}")
        for it in history.sends
        if it.outcome != "ok" and it.node < 0  # a node asked by itself needn't be the leader
    ]


CHECKERS: Mapping[str, Callable[[History], list[Problem]]] = {
    "lost": lost,
    "unreadable": unreadable,
    "doubled": doubled,
    "reordered": reordered,
    "invented": invented,
    "changed": changed,
    "went back": went_back,
    "stale end": stale_ends,
    "skipped": skipped,
    "diverged": diverged,
    "old leader": old_leaders,
    "silent": silent,
    "refused": refused,
    "fatal": fatal,
}


def judge(history: History) -> dict[str, list[Problem]]:
    """What each checker found; clean if every list is empty."""
    return {name: check(history) for name, check in CHECKERS.items()}


def _finals(history: History) -> dict[str, dict[Partition, Records]]:
    """What each final reader found in each partition that it read to the end."""
    finals: dict[str, dict[Partition, Records]] = defaultdict(lambda: defaultdict(list))
    for read in history.reads:
        if read.final:
            records = finals[read.client][read.topic, read.partition]
            records += enumerate(read.values, read.offset)
    return {reader: dict(logs) for reader, logs in finals.items()}


def _settled_offsets(history: History) -> dict[Partition, list[int]]:
    """The offsets that hold a record in the end, by any final reader."""
    offsets: dict[Partition, set[int]] = defaultdict(set)
    for logs in _finals(history).values():
        for key, records in logs.items():
            offsets[key].update(offset for offset, _ in records)
    return {key: sorted(found) for key, found in offsets.items()}


def _everything_read(history: History) -> Iterator[tuple[str, Partition, Records]]:
    for read in history.reads:
        key = (read.topic, read.partition)
        yield _reader(read), key, list(enumerate(read.values, read.offset))
    for copy in history.copies:
        key = (copy.topic, copy.partition)
        yield f"the copy of {_node(copy.node)}", key, list(enumerate(copy.values, copy.offset))


def _by_reader(history: History) -> dict[tuple[str, Partition], list[Read]]:
    found: dict[tuple[str, Partition], list[Read]] = defaultdict(list)
    for read in history.reads:
        found[read.client, (read.topic, read.partition)].append(read)
    return found


def _excused(history: History) -> set[Partition]:
    """Partitions whose only copy was damaged on purpose: to refuse them is right."""
    if history.start.replicas > 1:
        return set()
    damaged = {
        (it.about["topic"], it.about["partition"])
        for it in history.faults
        if it.name in DAMAGING and "topic" in it.about
    }
    # What is served all the same has to be whole.
    return damaged & {(it.topic, it.partition) for it in history.offline}


def _stale(told: End, floor: int, who: str) -> Problem:
    text = f"asked at {told.at} s, {_node(told.node)} said {told.offset}; {floor - 1} was {who}"
    return Problem("stale end", _at((told.topic, told.partition)), text)


def _holds(offsets: list[int], offset: int) -> bool:
    index = bisect_left(offsets, offset)
    return index < len(offsets) and offsets[index] == offset


def _at(key: Partition, offset: int | None = None) -> str:
    return f"{key[0]}-{key[1]}" + ("" if offset is None else f"@{offset}")


def _node(node: int) -> str:
    return f"node {node}" if node >= 0 else "some node"


def _reader(read: Read) -> str:
    return read.client if read.node < 0 else f"{read.client} (node {read.node})"
