"""The verdict as a page: one file without anything from elsewhere, drawn in SVG."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from itertools import groupby

from sapwood.spark.audit.verdict import MEANINGS, Finding, Strip, Subscription, Verdict

_WIDTH = 960
_LABEL = 170
_PLOT = _WIDTH - _LABEL - 70
_BAR = 240
_RATE_HEIGHT = 56
_STRIP_HEIGHT = 20
_MOST_MARKS = 200
_FINE_MS = 60_000
_LONGEST_LABEL = 24
_NUMBER = ' class="number"'

_STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --soft: #6b7280; --line: #d9dde3; --paper: #fff;
  --good: #2f7d4f; --bad: #c2362b; --data: #4a78a8; --pale: #e9edf2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --soft: #9aa3ad; --line: #343a42;
  --paper: #16191d; --good: #5cb585; --bad: #ef6a5e; --data: #7ba7d6; --pale: #262b31; } }
body { margin: 2rem auto; max-width: 62rem; padding: 0 1rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .2rem; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .4rem; }
p { margin: .3rem 0; } .soft, caption { color: var(--soft); }
.good { color: var(--good); } .bad { color: var(--bad); }
dl { display: flex; flex-wrap: wrap; gap: .4rem 2.2rem; margin: 1rem 0; }
dt { color: var(--soft); font-size: .8rem; } dd { margin: 0; font-size: 1.25rem; }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--ink); font-size: 12px; }
svg .soft { fill: var(--soft); } svg .data { fill: var(--data); } svg .pale { fill: var(--pale); }
svg .bad { fill: var(--bad); } svg .axis { stroke: var(--line); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .87rem; }
th, td { text-align: left; padding: .25rem .7rem .25rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; } th { color: var(--soft); font-weight: 500; }
.number { text-align: right; padding-right: 1.2rem; font-variant-numeric: tabular-nums; }
.name { white-space: nowrap; }
"""


def page(verdict: Verdict) -> str:
    outcome = "Clean" if verdict.is_clean else "Not clean"
    tone = "good" if verdict.is_clean else "bad"
    parts = [
        f'<h1>Audit: <span class="{tone}">{outcome}</span></h1>',
        f'<p class="soft">{_text(", ".join(verdict.topics))}'
        f" · {_time(verdict.began_ms)} to {_time(verdict.ended_ms)}</p>",
        _numbers(verdict),
        *(f'<p class="soft">Not judged: {_text(reason)}.</p>' for reason in verdict.unjudged),
        _kinds(verdict),
        _section("When records came", _rates(verdict)),
        _section("Each producer's numbers, from the first to the last", _strips(verdict)),
        _section("What subscribers got", _subscriptions(verdict.subscriptions)),
        _section("Findings", _findings(verdict)),
        _section("Producers by partition", _shares(verdict)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Audit: {outcome.lower()}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body></html>\n"
    )


def _section(title: str, body: str) -> str:
    return f"<section><h2>{title}</h2>\n{body}</section>" if body else ""


def _numbers(verdict: Verdict) -> str:
    shown = {
        "records": verdict.records,
        "bytes": verdict.bytes,
        "producers": verdict.producers,
        "acknowledgements": verdict.receipts,
        "deliveries": verdict.deliveries,
        "without a number": verdict.unnumbered or None,
        "findings": sum(verdict.found.values()),
    }
    cells = [
        f"<div><dt>{name}</dt><dd>{value:,}</dd></div>"
        for name, value in shown.items()
        if value is not None
    ]
    return f"<dl>{''.join(cells)}</dl>"


def _kinds(verdict: Verdict) -> str:
    """A bar for each kind that was found."""
    if verdict.is_clean:
        return ""
    most = max(verdict.found.values())
    rows = []
    for index, (kind, count) in enumerate(verdict.found.items()):
        top = index * 24
        width = max(2.0, count / most * _BAR)
        rows.append(
            f'<text x="0" y="{top + 14}">{kind}</text>'
            f'<rect class="bad" x="{_LABEL}" y="{top + 4}" width="{width:.1f}" height="13" rx="2"/>'
            f'<text x="{_LABEL + width + 8:.1f}" y="{top + 15}">{count:,}'
            f'<tspan class="soft" dx="8">{MEANINGS[kind]}</tspan></text>'
        )
    return _svg(24 * len(rows) + 4, rows, "How many findings there are of each kind")


def _rates(verdict: Verdict) -> str:
    if not verdict.rates:
        return ""
    span_ms = max(1, verdict.ended_ms - verdict.began_ms + 1)
    rows = []
    for index, (topic, counts) in enumerate(verdict.rates.items()):
        top = index * (_RATE_HEIGHT + 12)
        bottom = top + _RATE_HEIGHT
        most = max(*counts, 1)
        step = _PLOT / len(counts)
        bars = [
            f'<rect class="data" x="{_LABEL + place * step:.1f}" width="{max(step - 1, 1):.1f}" '
            f'y="{bottom - height:.1f}" height="{height:.1f}"/>'
            for place, count in enumerate(counts)
            if (height := count / most * (_RATE_HEIGHT - 6))
        ]
        marks = [
            _mark(_LABEL + (each.timestamp_ms - verdict.began_ms) / span_ms * _PLOT, top, each)
            for each in verdict.examples
            if each.topic == topic and each.timestamp_ms is not None
        ][:_MOST_MARKS]
        rows.append(
            _label(topic, bottom - 4)
            + f'<path class="axis" d="M{_LABEL} {bottom}h{_PLOT}"/>'
            + "".join(bars)
            + "".join(marks)
            + f'<text class="soft" x="{_LABEL + _PLOT + 8}" y="{top + 12}">{_short(most)}</text>'
        )
    height = len(rows) * (_RATE_HEIGHT + 12) + 14
    began, ended = _time(verdict.began_ms, span_ms), _time(verdict.ended_ms, span_ms)
    right = f'x="{_LABEL + _PLOT}" text-anchor="end"'
    ends = (
        f'<text class="soft" x="{_LABEL}" y="{height - 4}">{began}</text>'
        f'<text class="soft" {right} y="{height - 4}">{ended}</text>'
    )
    caption = "Records of each topic over time; at the right, the most in one step. Red: findings."
    return _svg(height + 4, [*rows, ends], caption) + _caption(caption)


def _strips(verdict: Verdict) -> str:
    if not verdict.strips:
        return ""
    suspects: dict[str, list[Finding]] = {}
    for finding in verdict.examples:
        if finding.producer is not None and finding.sequence is not None:
            suspects.setdefault(finding.producer, []).append(finding)
    rows = [
        _strip(strip, index * _STRIP_HEIGHT, suspects.get(strip.producer, []))
        for index, strip in enumerate(verdict.strips)
    ]
    caption = "Blue: numbers that are there; paler where some aren't. Red: findings."
    return _svg(len(rows) * _STRIP_HEIGHT + 2, rows, caption) + _caption(caption)


def _strip(strip: Strip, top: int, findings: Sequence[Finding]) -> str:
    size = strip.last - strip.first + 1
    step = _PLOT / len(strip.counts)
    expected = size // len(strip.counts)  # at least; where there is one more, it won't be missed
    height = _STRIP_HEIGHT - 6
    parts = [
        _label(f"{strip.producer} {strip.where}".strip(), top + 13),
        f'<rect class="pale" x="{_LABEL}" y="{top + 3}" width="{_PLOT}" height="{height}"/>',
    ]
    # Equal neighbours become one rectangle: most producers are whole.
    shades = [min(1.0, round(count / expected, 1)) for count in strip.counts]
    place = 0
    for shade, same in groupby(shades):
        count = len(list(same))
        if shade:
            parts.append(
                f'<rect class="data" x="{_LABEL + place * step:.1f}" y="{top + 3}" '
                f'width="{count * step:.1f}" height="{height}" opacity="{max(0.15, shade):g}"/>'
            )
        place += count
    for finding in findings[:_MOST_MARKS]:
        if finding.sequence is not None and strip.first <= finding.sequence <= strip.last:
            x = _LABEL + (finding.sequence - strip.first + 0.5) / size * _PLOT
            parts.append(_mark(x, top + 1, finding, height + 4))
    parts.append(
        f'<text class="soft" x="{_LABEL + _PLOT + 8}" y="{top + 13}">{_short(strip.last)}</text>'
    )
    return "".join(parts)


def _subscriptions(subscriptions: Sequence[Subscription]) -> str:
    rows = [
        (each.subscriber, f"{each.topic}-{each.partition}", each.deliveries, each.first, each.last)
        for each in subscriptions
    ]
    return _table(("subscriber", "partition", "deliveries", "first offset", "last offset"), rows)


def _findings(verdict: Verdict) -> str:
    rows = [
        (
            each.kind,
            each.place,
            each.producer or "",
            "" if each.sequence is None else str(each.sequence),
            each.subscriber or "",
            each.text,
        )
        for each in verdict.examples
    ]
    table = _table(("kind", "place", "producer", "number", "subscriber", "what is wrong"), rows)
    shown = Counter(each.kind for each in verdict.examples)
    cut = [kind for kind, count in verdict.found.items() if count > shown[kind]]
    more = f"Only some of: {', '.join(cut)}. The table beside this page has all." if cut else ""
    return table + _caption(more)


def _shares(verdict: Verdict) -> str:
    rows = [
        (
            each.producer,
            f"{each.topic}-{each.partition}",
            each.records,
            each.bytes,
            each.first,
            each.last,
        )
        for each in verdict.shares
    ]
    return _table(("producer", "partition", "records", "bytes", "first", "last"), rows)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str | int]]) -> str:
    if not rows:
        return ""
    head = "".join(
        f"<th{_NUMBER if isinstance(value, int) else ''}>{title}</th>"
        for title, value in zip(titles, rows[0], strict=True)
    )
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>\n" for row in rows)
    return f'<div class="scroll"><table><tr>{head}</tr>\n{body}</table></div>'


def _cell(value: str | int) -> str:
    if isinstance(value, int):
        return f"<td{_NUMBER}>{value:,}</td>"
    kind = ' class="name"' if " " not in value else ""
    return f"<td{kind}>{_text(value)}</td>"


def _svg(height: float, parts: Iterable[str], title: str) -> str:
    inside = "\n".join(parts)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height:g}" role="img"><title>{title}</title>\n{inside}</svg>'
    )


def _mark(x: float, top: float, finding: Finding, height: float = _RATE_HEIGHT) -> str:
    return (
        f'<rect class="bad" x="{x - 1:.1f}" y="{top}" width="2" height="{height}">'
        f"<title>{_text(str(finding))}</title></rect>"
    )


def _label(name: str, y: float) -> str:
    shown = name if len(name) <= _LONGEST_LABEL else f"{name[: _LONGEST_LABEL - 1]}…"
    return f'<text x="0" y="{y}"><title>{_text(name)}</title>{_text(shown)}</text>'


def _caption(text: str) -> str:
    return f'<p class="soft">{text}</p>' if text else ""


def _text(text: str) -> str:
    return escape("".join(each if each.isprintable() else "�" for each in text))


def _time(ms: int, span_ms: int = _FINE_MS) -> str:
    fine = f".{ms % 1000:03}" if span_ms < _FINE_MS else ""
    try:
        return f"{datetime.fromtimestamp(ms // 1000, UTC):%Y-%m-%d %H:%M:%S}{fine}"
    except (OSError, OverflowError, ValueError):  # producers may claim any time
        return f"{ms} ms"


def _short(number: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:g}"
