"""The verdict on a run: text for people, JSON for programs."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from chaos.checkers import Problem, judge
from chaos.gaps import Gap, by_fault, gaps
from chaos.history import History
from chaos.promises import overlaps, promised

EXAMPLES = 5


@dataclass(slots=True)
class Report:
    seed: int
    nodes: int
    about: dict[str, Any]
    seconds: float
    sends: dict[str, int]
    refused: dict[str, int]
    """The errors that came with it."""
    records_read: int
    ends_told: int
    faults: dict[str, int]
    problems: dict[str, list[Problem]]
    gaps: list[Gap]
    remarks: list[str]
    troubles: list[tuple[str, int]]
    """What clients were told, most frequent first; normal under faults."""
    directory: str = ""
    command: str = ""
    found: list[Problem] = field(init=False)

    def __post_init__(self) -> None:
        self.found = [problem for some in self.problems.values() for problem in some]

    @property
    def is_clean(self) -> bool:
        return not self.found

    def __str__(self) -> str:
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.sends.items()))
        faults = ", ".join(f"{count} {name}" for name, count in sorted(self.faults.items()))
        rows = [
            f"seed {self.seed}, {_plural(self.nodes, 'node')}, {self.seconds:.0f} s: "
            + ("clean" if self.is_clean else f"{_plural(len(self.found), 'problem')}"),
            f"  sent: {outcomes or 'nothing'}; {self.records_read} records read, "
            f"{self.ends_told} ends told",
            f"  faults: {faults or 'none'}",
        ]
        if self.refused:
            refused = ", ".join(f"{count} {name}" for name, count in self.refused.items())
            rows.append(f"  refused: {refused}")
        rows += [
            f"  longest silence after {it.fault}: median {it.median_s:.2f} s, "
            f"worst {it.worst_s:.2f} s ({it.faults})"
            for it in by_fault(self.gaps)
        ]
        rows += [f"  {remark}" for remark in self.remarks]
        for name, problems in self.problems.items():
            rows += [f"  {problem}" for problem in problems[:EXAMPLES]]
            if len(problems) > EXAMPLES:
                rows.append(f"  … {len(problems)} in all: {name}")
        if not self.is_clean:
            rows.append(f"  again: {self.command}")
            rows.append(f"  kept: {self.directory}")
        return "\n".join(rows)

    def write(self, directory: Path) -> None:
        (directory / "report.txt").write_text(f"{self}\n", encoding="utf-8")
        encoded = msgspec.json.format(msgspec.json.encode(self))
        (directory / "report.json").write_bytes(encoded)


def report(
    history: History,
    *,
    directory: Path | None = None,
    command: str = "",
    judged: Mapping[str, list[Problem]] | None = None,
) -> Report:
    """Judge a history, recorded just now or long ago; `judged` is what others have found."""
    start = history.start
    times = [it.done or it.at for it in history.sends] + [it.done for it in history.reads]
    return Report(
        seed=start.seed,
        nodes=start.nodes,
        about=start.about,
        seconds=max(times, default=0.0),
        sends=dict(Counter(it.outcome for it in history.sends)),
        refused=dict(Counter(it.error for it in history.sends if it.outcome == "fail")),
        records_read=sum(len(it.values) for it in history.reads),
        ends_told=sum(it.outcome == "ok" for it in history.ends),
        faults=dict(Counter(it.name for it in history.faults)),
        problems={**judge(history), **promised(history), **(judged or {})},
        gaps=gaps(history),
        remarks=overlaps(history),
        troubles=Counter(it.error for it in history.troubles).most_common(20),
        directory=str(directory or ""),
        command=command,
    )


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
