"""One run: a workload of some shape, faults while it works, healing, the final check."""

import json
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from chaos.audited import audited
from chaos.copies import record_copies
from chaos.disk import sweep
from chaos.faults import KINDS, usual
from chaos.history import FILE_NAME, History, Mended, Recorder
from chaos.nemesis import Nemesis, plan
from chaos.probes import Probe
from chaos.producers import Producers
from chaos.readers import Partition, read_finally, start_readers
from chaos.report import Report, report
from chaos.scenarios import SCENARIOS
from chaos.shape import Shape, drawn
from chaos.target import Target, Unhealed

ROOT = Path(__file__).resolve().parent.parent / ".cache" / "chaos"
EVERY_S = 0.2
REST_S = 3.0
START_PATIENCE_S = 30.0
HEAL_PATIENCE_S = 60.0
READ_PATIENCE_S = 15.0
LONGEST_DELAY_S = 120.0
# With its only copy damaged a partition never comes back: no use to wait long. Others have to be
# read nevertheless.
HOPELESS_PATIENCE_S = 2.0
HOPELESS_READ_PATIENCE_S = 6.0
CLEAN_RUNS_KEPT = 5

Say = Callable[[str], None]


class NotUnderWay(Exception):
    """The workload doesn't even run without faults."""


@dataclass(frozen=True, slots=True)
class Options:
    seed: int
    nodes: int = 1
    seconds: float = 40.0
    faults: tuple[str, ...] = ()
    """Names from KINDS; none means what a cluster of this size has to bear."""
    scenario: str = ""
    """One of SCENARIOS, instead of what the seed would plan."""
    root: Path = ROOT
    keep: bool = False
    audit: bool = False
    """Whether Spark judges as well, from the log alone."""

    @property
    def command(self) -> str:
        if self.scenario:
            return (
                f"python -m chaos scenario {self.scenario} --seed {self.seed} --nodes {self.nodes}"
                f"{' --audit' if self.audit else ''}"
            )
        faults = f" --faults {','.join(self.faults)}" if self.faults else ""
        return (
            f"python -m chaos run --runs 1 --seed {self.seed} --nodes {self.nodes} "
            f"--seconds {self.seconds:g}{faults}{' --audit' if self.audit else ''}"
        )


def run(options: Options, say: Say = lambda _: None) -> Report:
    chance = random.Random(options.seed)
    if options.scenario:
        shape, steps = SCENARIOS[options.scenario](chance)
        seconds = max(step.at_s + step.hold_s for step in steps) + REST_S
    else:
        shape = drawn(chance)
        steps = plan(chance, options.seconds, options.faults or usual(options.nodes))
        seconds = options.seconds
    small_disk = None
    kinds = [KINDS[step.name] for step in steps]
    if any(kind.needs == "small disk" for kind in kinds):
        small_disk = chance.randrange(options.nodes)
        shape = shape.filling()
    planned = [asdict(step) for step in steps]
    about = {**shape.about(), "scenario": options.scenario, "plan": planned}
    with run_directory(options.root, options.seed) as directory:
        replicas = min(3, options.nodes)
        with (
            Recorder(
                directory, seed=options.seed, nodes=options.nodes, replicas=replicas, about=about
            ) as recorder,
            Target(
                recorder,
                directory,
                options.nodes,
                small_disk=small_disk,
                linked=any(kind.needs == "links" for kind in kinds),
                hops=any(kind.needs == "hops" for kind in kinds),
            ) as target,
        ):
            create_topics(target, shape, replicas)
            work = _Work(recorder, target, shape, chance)
            nemesis = Nemesis(target, recorder, steps, shape.partitions)
            try:
                work.get_under_way(say)
                nemesis.start()
                work.go_on(seconds, nemesis, say)
                nemesis.finish()
                work.heal(say)
            finally:
                nemesis.stop()
                work.finish()
            say("reading everything")
            work.read_everything()
            recorder.close()
            say("judging")
            judged = {}
            if options.audit:
                judged["audit"] = audited(directory, target.bootstrap, shape.topics)
            history = History.load(directory)
            found = report(history, directory=directory, command=options.command, judged=judged)
            target.keep = not found.is_clean or options.keep
            if not found.is_clean:
                described = json.dumps(target.describe(), indent=1)
                (directory / "nodes.json").write_text(described, encoding="utf-8")
        settle(found, directory, keep=options.keep)
    return found


class _Work:
    """All clients of a run, and the cluster's helper in need."""

    def __init__(
        self, recorder: Recorder, target: Target, shape: Shape, chance: random.Random
    ) -> None:
        self._recorder = recorder
        self._target = target
        self._partitions = shape.partitions
        self._began = time.monotonic()
        self._producers = Producers(recorder, target.bootstrap, shape, chance)
        self._readers = start_readers(recorder, target.bootstrap, shape.readers, shape.partitions)
        self._probes = [
            Probe(recorder, node, target.address(node), shape.partitions, random.Random(node))
            for node in target.nodes
        ]
        for probe in self._probes:
            probe.start()

    def get_under_way(self, say: Say) -> None:
        if missing := self._await_acknowledgements(START_PATIENCE_S, "starting", say):
            raise NotUnderWay(f"no acknowledgement within {START_PATIENCE_S} s from {missing}")

    def go_on(self, seconds: float, nemesis: Nemesis, say: Say) -> None:
        """For so long, or until the last fault is over that had to wait for its time."""
        until = time.monotonic() + seconds
        longest = until + LONGEST_DELAY_S
        while nemesis.error is None and time.monotonic() < longest:
            if time.monotonic() > until and (not nemesis.is_alive() or not nemesis.is_late):
                return
            active = [f"{it.name} {it.nodes}" for it in list(nemesis.active.values())]
            self._tell(", ".join(active) or "calm", say)
            self._target.notice_crashes()
            time.sleep(EVERY_S)

    def heal(self, say: Say) -> None:
        """Until every partition takes records again and all is whole."""
        self._tell("healing", say)
        self._target.heal()
        try:
            self._target.await_health(HEAL_PATIENCE_S)
            # A node that has just been started says only now what it refuses.
            patience_s = HOPELESS_PATIENCE_S if self._hopeless() else HEAL_PATIENCE_S
            self._await_acknowledgements(patience_s, "healed, writing again", say)
            self._producers.stop()
            deadline = time.monotonic() + patience_s
            while self._producers.waiting and time.monotonic() < deadline:
                self._tell("waiting for the last acknowledgements", say)
                time.sleep(EVERY_S)
            if (unanswered := self._producers.waiting) and not self._hopeless():
                places = ", ".join(f"{topic}-{index}" for topic, index in sorted(unanswered))
                raise Unhealed(f"records that nobody acknowledged in {patience_s:g} s: {places}")
            self._target.await_health(HEAL_PATIENCE_S)
        except Unhealed as error:
            self._target.complain("cluster", str(error))

    def finish(self) -> None:
        self._producers.finish()
        for probe in self._probes:
            probe.finish()
        for reader in self._readers:
            reader.finish()

    def read_everything(self) -> None:
        patience_s = HOPELESS_READ_PATIENCE_S if self._hopeless() else READ_PATIENCE_S
        ends = read_finally(self._recorder, self._target.bootstrap, self._partitions, patience_s)
        record_copies(self._recorder, self._target, ends, patience_s)
        for node, topic, partition in self._target.mended():
            self._recorder.add(Mended(node=node, topic=topic, partition=partition))

    def _hopeless(self) -> bool:
        return len(self._target.nodes) == 1 and bool(self._target.offline())

    def _await_acknowledgements(self, patience_s: float, what: str, say: Say) -> set[Partition]:
        """The partitions that didn't acknowledge anything that was sent from now on."""
        since = self._recorder.now()
        deadline = time.monotonic() + patience_s
        while True:
            acknowledged_at = self._recorder.acknowledged_at
            missing = {it for it in self._partitions if acknowledged_at.get(it, -1.0) < since}
            if not missing or time.monotonic() > deadline:
                return missing
            self._tell(what, say)
            self._target.notice_crashes()
            time.sleep(EVERY_S)

    def _tell(self, what: str, say: Say) -> None:
        recorder = self._recorder
        say(
            f"{time.monotonic() - self._began:4.0f} s  {recorder.acknowledged} acknowledged  "
            f"{recorder.refused} refused  {recorder.records_read} read  {what}"
        )


def create_topics(target: Target, shape: Shape, replicas: int) -> None:
    """Returns when every node knows who leads what: before, clients may be told otherwise."""
    admin = AdminClient({"bootstrap.servers": target.bootstrap, "log_level": 0})
    config = {"segment.bytes": str(shape.segment_bytes)}
    new = [
        NewTopic(name, num_partitions=count, replication_factor=replicas, config=config)
        for name, count in shape.topics.items()
    ]
    for created in admin.create_topics(new).values():
        created.result(START_PATIENCE_S)
    deadline = time.monotonic() + START_PATIENCE_S
    while missing := target.unknown(shape.partitions):
        if time.monotonic() > deadline:
            raise NotUnderWay(f"leaders that aren't known, as (node, topic, partition): {missing}")
        time.sleep(EVERY_S)


@contextmanager
def run_directory(root: Path, seed: int) -> Iterator[Path]:
    root.mkdir(parents=True, exist_ok=True)
    sweep(root)
    directory = root / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{seed}"
    directory.mkdir()
    yield directory


def settle(found: Report, directory: Path, *, keep: bool) -> None:
    """Write the report; of a clean run only that and the history stay, and of old ones nothing."""
    found.write(directory)
    if keep or not found.is_clean:
        return
    shutil.rmtree(directory / "cluster", ignore_errors=True)
    clean = [path.parent for path in directory.parent.glob(f"*/{FILE_NAME}")]
    clean = sorted(path for path in clean if not (path / "cluster").exists())
    for old in clean[:-CLEAN_RUNS_KEPT]:
        shutil.rmtree(old, ignore_errors=True)
