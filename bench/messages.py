"""`python -m bench.messages`: put and get, one by one and in lists, each safe before the next.

Every publisher and every subscriber is a process of its own. A subscriber gets all messages of its
topic; in the end each of them must have got each message once.
"""

import itertools
import json
import multiprocessing
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import click

from bench import mailboxes, peers
from bench.jobs import Jobs
from bench.mailboxes import Mailbox
from bench.peers import LoadFailed
from bench.processes import OthersWatch, free_ports

ALL = "sapwood,nats,redis,rabbitmq,sapwood:3,nats:3"
OURS = "sapwood"
LIST = 100
SIZE = 100
PACED_PER_S = 50
PATIENCE_S = 120.0
# Long enough for a message that is delivered a second time to arrive.
NO_MORE_S = 0.3

# Workers begin as copies of a harness that has neither threads nor connections.
FORK = multiprocessing.get_context("fork")

Found = dict[str, float]


class Contender(NamedTuple):
    name: str
    nodes: int

    @property
    def title(self) -> str:
        title = peers.peer(self.name).title
        return f"{title}, three nodes" if self.nodes > 1 else title


class Done(NamedTuple):
    """What a worker did: messages while it was watched, the time, that of each call, and all."""

    counted: int
    took_s: float
    calls_ms: list[float]
    messages: list[bytes]


Begin = Callable[[], None]
Job = Callable[[Begin], Done | None]


class Crew:
    """Workers that connect, say so, and begin together."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        barrier = FORK.Barrier(len(jobs))
        self._workers = []
        for job in jobs:
            ours, theirs = FORK.Pipe()
            process = FORK.Process(target=_work, args=(job, barrier, theirs), daemon=True)
            process.start()
            theirs.close()
            self._workers.append((process, ours))

    def results(self) -> list[Any]:
        found, failed = [], []
        try:
            for _, pipe in self._workers:
                if not pipe.poll(PATIENCE_S):
                    raise LoadFailed(f"a worker took longer than {PATIENCE_S:.0f} s")
                result, error = pipe.recv()
                found.append(result)
                failed += [error] if error else []
        except EOFError as error:
            raise LoadFailed("a worker ended without a word") from error
        finally:
            for process, pipe in self._workers:
                pipe.close()
                process.join(1.0)
                process.kill()
                process.join()
        if failed:
            raise LoadFailed("; ".join(failed))
        return found


def _work(job: Job, barrier: Any, pipe: Connection) -> None:
    try:
        pipe.send((job(lambda: barrier.wait(PATIENCE_S)), None))
    except Exception as error:
        barrier.abort()
        pipe.send((None, f"{type(error).__name__}: {error}"))


class Bench:
    """The measurements of one running broker."""

    def __init__(self, name: str, ports: Sequence[int], seconds: float) -> None:
        self._name = name
        self._ports = ports
        self._seconds = seconds

    def run(self) -> Found:
        return {
            **self._one_by_one(),
            **self._publishers(8),
            **self._subscribers(4),
            **self._lists(),
            **self._paced(),
        }

    def _one_by_one(self) -> Found:
        topic = self._topic("single", 1)
        (put,) = puts = self._put(topic, 1, 1)
        (got,) = self._get(topic, 1, 1, puts)
        return {
            "puts/s, 1 publisher": _rate(puts),
            **_percentiles("put", put.calls_ms),
            "gets/s, 1 subscriber": _rate([got]),
            **_percentiles("get of what is there", got.calls_ms),
        }

    def _publishers(self, publishers: int) -> Found:
        topic = self._topic("publishers", 1)
        puts = self._put(topic, publishers, 1)
        self._get(topic, 1, LIST, puts)
        return {f"puts/s, {publishers} publishers": _rate(puts)}

    def _subscribers(self, subscribers: int) -> Found:
        topic = self._topic("subscribers", subscribers)
        puts = self._put(topic, 1, LIST)
        gets = self._get(topic, subscribers, 1, puts)
        return {f"gets/s, {subscribers} subscribers together": _rate(gets)}

    def _lists(self) -> Found:
        topic = self._topic("lists", 1)
        puts = self._put(topic, 1, LIST)
        gets = self._get(topic, 1, LIST, puts)
        return {
            f"messages put/s in lists of {LIST}": _rate(puts),
            f"messages got/s in lists of {LIST}": _rate(gets),
        }

    def _paced(self) -> Found:
        """One publisher by the clock, and one subscriber that waits for each message."""
        topic, count = self._topic("paced", 1), max(10, int(PACED_PER_S * self._seconds))

        def publish(begin: Begin) -> Done:
            mailbox = self._mailbox(topic, "publisher-0")
            messages = list(itertools.islice(_messages(0), 1))
            mailbox.put(messages)
            begin()
            start = time.monotonic()
            for number, message in enumerate(itertools.islice(_messages(0, 1), count)):
                time.sleep(max(0.0, start + number / PACED_PER_S - time.monotonic()))
                # Made before the pause: the moment is written when it is over.
                messages.append(_stamped(message))
                mailbox.put(messages[-1:])
            mailbox.close()
            return Done(count, time.monotonic() - start, [], messages)

        def subscribe(begin: Begin) -> Done:
            mailbox = self._mailbox(topic, "subscriber-0")
            got, calls_ms = mailbox.get(1, PATIENCE_S), []
            begin()
            while len(got) < count + 1:
                found = mailbox.get(1, PATIENCE_S)
                calls_ms.append((time.monotonic_ns() - _stamp(found[0])) / 1e6)
                got += found
            got += mailbox.get(1, NO_MORE_S)
            mailbox.close()
            return Done(count, 0.0, calls_ms, got)

        put, got = Crew([publish, subscribe]).results()
        check([put], [got])
        return _percentiles(f"put → get at {PACED_PER_S}/s", got.calls_ms)

    def _topic(self, topic: str, subscribers: int) -> str:
        """In a worker, too: the libraries may leave threads behind."""
        names = [f"subscriber-{number}" for number in range(subscribers)]

        def create(begin: Begin) -> None:
            begin()
            mailboxes.create(self._name, self._ports, topic, names)

        Crew([create]).results()
        return topic

    def _mailbox(self, topic: str, owner: str) -> Mailbox:
        return mailboxes.mailbox(self._name, self._ports, topic, owner)

    def _put(self, topic: str, publishers: int, length: int) -> list[Done]:
        def publish(number: int, begin: Begin) -> Done:
            mailbox = self._mailbox(topic, f"publisher-{number}")
            source = _messages(number)
            messages = list(itertools.islice(source, length))
            mailbox.put(messages)
            begin()
            calls_ms = []
            start = now = time.perf_counter()
            while now - start < self._seconds:
                them = list(itertools.islice(source, length))
                called = time.perf_counter()
                mailbox.put(them)
                now = time.perf_counter()
                calls_ms.append((now - called) * 1000)
                messages += them
            mailbox.close()
            return Done(len(messages) - length, now - start, calls_ms, messages)

        return Crew([_numbered(publish, number) for number in range(publishers)]).results()

    def _get(self, topic: str, subscribers: int, length: int, puts: Sequence[Done]) -> list[Done]:
        expected = sum(len(it.messages) for it in puts)

        def subscribe(number: int, begin: Begin) -> Done:
            owner = f"subscriber-{number}"
            mailbox = self._mailbox(topic, owner)
            got = mailbox.get(length, PATIENCE_S)
            before = len(got)
            begin()
            calls_ms = []
            start = now = time.perf_counter()
            while now - start < self._seconds and len(got) < expected:
                called = now
                got += mailbox.get(length, PATIENCE_S)
                now = time.perf_counter()
                calls_ms.append((now - called) * 1000)
            mailbox.close()
            counted = len(got) - before
            # The rest, by one who comes back, in lists: not measured, but checked.
            mailbox = self._mailbox(topic, owner)
            while len(got) < expected and (found := mailbox.get(LIST, PATIENCE_S)):
                got += found
            got += mailbox.get(LIST, NO_MORE_S)
            mailbox.close()
            return Done(counted, now - start, calls_ms, got)

        gets = Crew([_numbered(subscribe, number) for number in range(subscribers)]).results()
        check(puts, gets)
        return gets


def _numbered(job: Callable[[int, Begin], Done], number: int) -> Job:
    return lambda begin: job(number, begin)


def _messages(publisher: int, start: int = 0) -> Iterator[bytes]:
    for number in itertools.count(start):
        yield f"{publisher} {number} ".encode().ljust(SIZE, b".")


def _stamped(message: bytes) -> bytes:
    return message[: SIZE - 20] + b"%020d" % time.monotonic_ns()


def _stamp(message: bytes) -> int:
    return int(message[-20:])


def check(puts: Sequence[Done], gets: Sequence[Done]) -> None:
    put = sorted(message for it in puts for message in it.messages)
    for number, it in enumerate(gets):
        if sorted(it.messages) != put:
            lost, doubled = len(set(put) - set(it.messages)), len(it.messages) - len({*it.messages})
            raise LoadFailed(f"of {len(put)}, subscriber {number} lost {lost}, doubled {doubled}")


def _rate(done: Sequence[Done]) -> float:
    return sum(it.counted for it in done) / max(max(it.took_s for it in done), 1e-9)


def _percentiles(what: str, values_ms: Sequence[float]) -> Found:
    ordered = sorted(values_ms)
    return {
        f"{what}, {name} (ms)": ordered[int(share * (len(ordered) - 1))]
        for name, share in (("p50", 0.5), ("p99", 0.99))
    }


def measured(contender: Contender, seconds: float) -> Found:
    """One broker's turn: fresh, and gone with its data afterwards."""
    peer = peers.peer(contender.name)
    directory = Path(tempfile.mkdtemp(prefix=f"sapwood-bench-messages-{contender.name}-"))
    ports = free_ports(contender.nodes)
    others = OthersWatch()
    try:
        jobs = Jobs(contender.name, ports, synced=True)
        jobs.first(lambda: peer.start(directory, ports, synced=True))
        found = Bench(contender.name, ports, seconds).run()
        used = others.share(peer.roots())
    finally:
        peer.stop()
        shutil.rmtree(directory, ignore_errors=True)
    return {**found, "used by others (% of the machine)": used * 100}


def contenders(wanted: str) -> list[Contender]:
    found = []
    for part in wanted.split(","):
        name, _, nodes = part.partition(":")
        if name not in mailboxes.KINDS or nodes not in ("", "1", "3"):
            raise click.BadParameter(f"{part}: choose from {ALL}")
        peer = peers.peer(name)
        if nodes == "3" and not peer.is_clustered:
            raise click.BadParameter(f"{part}: the harness runs one node of it")
        if missing := peer.missing():
            raise click.ClickException(f"without {peer.title}: {missing}")
        peer.prepare()
        found.append(Contender(name, int(nodes or 1)))
    return found


def table(medians: Mapping[Contender, Found]) -> Iterator[str]:
    """With Sapwood's number over the other's, on as many nodes, behind each other's."""
    yield f"| | {' | '.join(it.title for it in medians)} |"
    yield "|---|" + "---:|" * len(medians)
    for row in next(iter(medians.values())):
        cells = []
        for contender, found in medians.items():
            digits = 0 if found[row] >= 100 else 1 if found[row] >= 10 else 2
            cell = f"{found[row]:,.{digits}f}"
            ours = medians.get(Contender(OURS, contender.nodes))
            if contender.name != OURS and ours is not None and not row.startswith("used by"):
                cell += f" ({ours[row] / found[row]:.2f}×)"
            cells.append(cell)
        yield f"| {row} | {' | '.join(cells)} |"


@click.command()
@click.option("--peers", "wanted", default=ALL, show_default=True, help="Name, or name:3.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--seconds", default=3.0, show_default=True, help="Of each measurement.")
@click.option("--quick", is_flag=True, help="One round, half a second each.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="JSON.")
def main(wanted: str, rounds: int, seconds: float, quick: bool, output: Path | None) -> None:
    """Put and get: Sapwood, NATS JetStream, Redis Streams and RabbitMQ, all of them synced."""
    if quick:
        rounds, seconds = 1, 0.5
    chosen = contenders(wanted)
    samples: dict[Contender, list[Found]] = {it: [] for it in chosen}
    for _ in range(rounds):
        for contender in chosen:
            samples[contender].append(measured(contender, seconds))
            if output is not None:  # after each turn: a run that is cut short has told something
                raw = {f"{it.name}:{it.nodes}": found for it, found in samples.items()}
                output.write_text(json.dumps(raw, indent=1))
    medians = {
        contender: {row: statistics.median(it[row] for it in found) for row in found[0]}
        for contender, found in samples.items()
    }
    for line in table(medians):
        print(line)


if __name__ == "__main__":
    main()
