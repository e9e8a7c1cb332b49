"""What was found: medians, ratios, a table for the terminal and for a page, a plot, raw numbers."""

import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.work import METRICS, Row

OURS = "sapwood"
QUIET = 0.1  # the most that others may use of the machine


@dataclass
class Results:
    """Every sample of every peer in every row, in the order of measuring."""

    titles: dict[str, str]
    about: dict[str, Any]
    samples: dict[Row, dict[str, list[float]]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    others: list[float] = field(default_factory=list)  # share of the machine, by turn

    def record(self, peer: str, row: Row, value: float) -> None:
        self.samples.setdefault(row, {}).setdefault(peer, []).append(value)

    def median(self, peer: str, row: Row) -> float | None:
        values = self.samples.get(row, {}).get(peer)
        return statistics.median(values) if values else None

    def ratio(self, peer: str, row: Row, their_row: Row | None = None) -> float | None:
        """Sapwood's number over the peer's, which may be that of another row."""
        ours, theirs = self.median(OURS, row), self.median(peer, their_row or row)
        return ours / theirs if ours is not None and theirs else None

    def rows(self, metric: str) -> list[Row]:
        found = [row for row in self.samples if row.metric == metric]
        return sorted(
            found,
            key=lambda row: (
                *(row.nodes, not row.synced),
                *(row.size or 0, row.partitions or 0, row.keyed),
            ),
        )


def describe(row: Row) -> str:
    parts = [f"{row.nodes} nodes"] if row.nodes > 1 else []
    parts.append("synced" if row.synced else "OS-buffered")
    if row.size is not None:
        parts.append("1 KB" if row.size == 1000 else f"{row.size} B")
    if row.partitions is not None:
        parts.append(f"{row.partitions:,} partition{'' if row.partitions == 1 else 's'}")
    if row.keyed:
        parts.append("keyed")
    return ", ".join(parts)


def number(value: float | None, row: Row) -> str:
    if value is None:
        return "–"
    if METRICS[row.metric].unit == "messages/s":
        rate = f"{value / 1000:,.0f} k/s" if value >= 10_000 else f"{value:,.0f}/s"
        return f"{rate}, {value * row.size / 1e6:,.0f} MB/s" if row.size else rate
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def _cells(results: Results, row: Row) -> Iterator[tuple[str, str, bool | None]]:
    """Per peer: its number, Sapwood's ratio to it, and whether that is to Sapwood's credit."""
    better_above = METRICS[row.metric].higher_is_better
    for peer in results.titles:
        ratio = results.ratio(peer, row) if peer != OURS else None
        shown = number(results.median(peer, row), row)
        if ratio is None:
            yield shown, "", None
        else:
            yield shown, f"{ratio:.2f}×", (ratio >= 1) == better_above or ratio == 1


def print_tables(results: Results, console: Console) -> None:
    for metric in METRICS.values():
        rows = results.rows(metric.name)
        if not rows:
            continue
        aim = "more" if metric.higher_is_better else "less"
        table = Table(
            title=f"{metric.title} ({metric.unit}; {aim} is better)", title_justify="left"
        )
        table.add_column("")
        for title in results.titles.values():
            table.add_column(title, justify="right")
        for row in rows:
            line = [Text(describe(row))]
            for shown, ratio, good in _cells(results, row):
                cell = Text(shown)
                if ratio:
                    cell.append(f"  {ratio}", "bold green" if good else "bold red")
                line.append(cell)
            table.add_row(*line)
        console.print(table)
    if OURS in results.titles:
        console.print("n× is Sapwood's number over the peer's; green is to Sapwood's credit.")
    if (others := max(results.others, default=0)) > QUIET:
        console.print(f"Others used up to {others:.0%} of the machine: repeat it when it is quiet.")
    for error in results.errors:
        console.print(f"[red]failed:[/red] {error}")


def markdown(results: Results) -> str:
    """The same tables for a page of documentation."""
    lines: list[str] = []
    for metric in METRICS.values():
        rows = results.rows(metric.name)
        if not rows:
            continue
        lines += [f"### {metric.title} ({metric.unit})", ""]
        lines.append("| | " + " | ".join(results.titles.values()) + " |")
        lines.append("|---|" + "---:|" * len(results.titles))
        for row in rows:
            cells = [
                f"{shown} (**{ratio}**)" if ratio else shown
                for shown, ratio, _ in _cells(results, row)
            ]
            lines.append(f"| {describe(row)} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def raw(results: Results) -> dict[str, Any]:
    return {
        "about": results.about,
        "peers": results.titles,
        "rows": [{**row._asdict(), "samples": samples} for row, samples in results.samples.items()],
        "errors": results.errors,
        "others": results.others,
    }


def plot(results: Results, path: Path) -> None:
    """A panel for each metric, a group of bars for each row, a bar for each peer."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    panels = [metric for metric in METRICS.values() if results.rows(metric.name)]
    if not panels:
        return
    columns = 2
    lines = -(-len(panels) // columns)
    figure, axes = pyplot.subplots(lines, columns, figsize=(16, 4.2 * lines), squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    width = 0.8 / len(results.titles)
    for metric, axis in zip(panels, axes.flat, strict=False):
        rows = results.rows(metric.name)
        for place, (peer, title) in enumerate(results.titles.items()):
            values = [results.median(peer, row) or 0 for row in rows]
            positions = [index + place * width for index in range(len(rows))]
            axis.bar(positions, values, width, label=title, log=True)
        axis.set_title(f"{metric.title} ({metric.unit})", loc="left", fontsize=10)
        middle = 0.4 - width / 2
        axis.set_xticks(
            [index + middle for index in range(len(rows))],
            [describe(row).replace(", ", "\n") for row in rows],
            fontsize=5,
        )
        axis.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=len(labels), frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 0.98))
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def write(results: Results, directory: Path) -> list[Path]:
    directory.mkdir(parents=True, exist_ok=True)
    paths = [directory / f"results.{kind}" for kind in ("json", "md", "png")]
    paths[0].write_text(json.dumps(raw(results), indent=1), encoding="utf-8")
    paths[1].write_text(markdown(results), encoding="utf-8")
    plot(results, paths[2])
    return paths
