"""What Spark raises, in one line: the reason itself, out of the traces of two languages."""

from __future__ import annotations

import re

from sapwood.spark.pipelines.words import PipelineFailed

# The line that ends a Python trace: "package.Class: words", or a class alone.
_RAISED = re.compile(r"^([A-Za-z_][\w.]*): (.+)$")
_TRACE = "Traceback (most recent call last):"
# Spark's own: "[CONDITION] words SQLSTATE: 12345".
_CONDITION = re.compile(r"^\[[A-Z0-9_.]+\] ")
_STATE = re.compile(r"\s*SQLSTATE: \w+.*$", re.DOTALL)
_LONGEST = 500
# Whose words stand for themselves.
_SELF_EXPLAINING = ("sapwood.", "pyspark.errors.")


def explain(error: BaseException) -> str:
    """One line for people, without the class's name where the words suffice."""
    if isinstance(error, PipelineFailed):
        return str(error)
    chain = _causes(error)
    traces = [raised for each in chain if (raised := _raised_in_python(str(each)))]
    if traces:
        name, words = traces[-1]
        kind = "" if name.startswith(_SELF_EXPLAINING) else name
    else:
        last = next((each for each in reversed(chain) if str(each).strip()), error)
        line = next((line for line in str(last).splitlines() if line.strip()), "")
        words = _STATE.sub("", _CONDITION.sub("", line.strip()))
        kind = "" if type(last).__module__.startswith(_SELF_EXPLAINING) else type(last).__name__
    words = " ".join(words.split())[:_LONGEST]
    return f"{kind}: {words}" if kind and words else words or kind


def _causes(error: BaseException) -> list[BaseException]:
    """The error, and what it came of: Spark's errors keep that in a place of their own."""
    chain = [error]
    while (cause := getattr(chain[-1], "_cause", None) or chain[-1].__cause__) is not None:
        if cause in chain:
            break
        chain.append(cause)
    return chain


def explain_log(text: str) -> str:
    """The reason, out of what a program of Spark's has printed before it failed."""
    raised = _raised_in_python(text)
    if raised is not None and raised[0].startswith(_SELF_EXPLAINING):
        return " ".join(raised[1].split())[:_LONGEST]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    conditions = [line for line in map(_unframed, lines) if _CONDITION.match(line)]
    if conditions:
        return _STATE.sub("", _CONDITION.sub("", conditions[-1]))[:_LONGEST]
    if raised is not None:
        return ": ".join(raised)[:_LONGEST]
    return lines[-1][:_LONGEST] if lines else "Spark failed without a word"


def _unframed(line: str) -> str:
    """Without the class's name in front."""
    return re.sub(r"^(?:Caused by: )?[\w.$]+(?:Exception|Error): ", "", line.strip())


def _raised_in_python(text: str) -> tuple[str, str] | None:
    """What the last trace of Python in it ends with: the others tell how it went on from there."""
    _, found, last = text.rpartition(_TRACE)
    if not found:
        return None
    for line in last.splitlines():
        if line[:1] not in ("", " ") and (match := _RAISED.match(line.strip())):
            return match[1], match[2]
    return None
