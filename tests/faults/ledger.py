"""What producers were promised against what is in the log."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Entry = tuple[str, int]  # (producer, number); each producer counts from 0


@dataclass
class Verdict:
    lost: list[Entry] = field(default_factory=list)
    duplicated: list[Entry] = field(default_factory=list)
    reordered: list[tuple[Entry, Entry]] = field(default_factory=list)  # (later, earlier) as found
    invented: list[Entry] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.duplicated or self.reordered or self.invented)

    def __str__(self) -> str:
        if self.is_clean:
            return "nothing lost, doubled, reordered or invented"
        rows: dict[str, Sequence[object]] = {
            "lost": self.lost,
            "doubled": self.duplicated,
            "reordered": self.reordered,
            "invented": self.invented,
        }
        return "; ".join(
            f"{len(them)} {what}, e.g. {them[:3]}" for what, them in rows.items() if them
        )


def judge(
    acknowledged: Mapping[str, Iterable[int]],
    sent: Mapping[str, int],
    found: Iterable[Entry],
) -> Verdict:
    """Compare; `sent` gives how many records each producer handed over, acknowledged or not.

    What was sent but never acknowledged may be in the log or not, but not twice, nor out of order.
    """
    verdict = Verdict()
    last: dict[str, int] = {}
    seen: dict[str, set[int]] = {name: set() for name in sent}
    for producer, number in found:
        if not 0 <= number < sent.get(producer, 0):
            verdict.invented.append((producer, number))
            continue
        if number in seen[producer]:
            verdict.duplicated.append((producer, number))
            continue
        seen[producer].add(number)
        before = last.get(producer, -1)
        if number < before:
            verdict.reordered.append(((producer, before), (producer, number)))
        last[producer] = max(before, number)
    for producer, numbers in acknowledged.items():
        there = seen.get(producer, set())
        verdict.lost += [(producer, number) for number in numbers if number not in there]
    return verdict
