"""Regular expressions over topic names, in RE2's syntax, matched in linear time.

Python's `re` backtracks: one heartbeat with `(a|a)*b` would hold up the node for good. Here an
expression becomes an automaton, and names, which have few different characters, walk along the
sets of its states; each step is remembered, and so is the outcome for each name.
"""

import string
from typing import NamedTuple

ALPHABET = frozenset(string.ascii_letters + string.digits + "._-")
"""What topic names consist of, and what `.` and `[^…]` stand for."""
MAX_PATTERN = 1000
MAX_STATES = 2000
MAX_DEPTH = 50
MAX_REPEAT = 1000
MAX_REMEMBERED = 10_000

_WORD = frozenset(string.ascii_letters + string.digits + "_")
_CLASSES = {
    "d": frozenset(string.digits),
    "D": ALPHABET - frozenset(string.digits),
    "w": _WORD,
    "W": ALPHABET - _WORD,
    "s": frozenset[str](),
    "S": ALPHABET,
}
_CONTROL = frozenset("tnrfva")
_AT_START, _AT_END = "start", "end"

Characters = frozenset[str]


class InvalidPattern(ValueError):
    """An expression that can't be understood, or asks for too much."""


class _Sequence(NamedTuple):
    items: list["_Node"]


class _Choice(NamedTuple):
    items: list["_Node"]


class _Repeat(NamedTuple):
    item: "_Node"
    least: int
    most: int | None


_Node = _Sequence | _Choice | _Repeat | Characters | str
"""Characters stand for one of them; a string for a place: at the start, at the end."""


class TopicPattern:
    """An expression that has to match a whole name."""

    def __init__(self, pattern: str) -> None:
        if len(pattern) > MAX_PATTERN:
            raise InvalidPattern(f"it is longer than {MAX_PATTERN} characters")
        self._conditions: list[Characters | str | None] = []
        self._ways: list[list[int]] = []
        self._accepting = self._state(None, [])
        first = self._built(_Parser(pattern).parsed(), self._accepting)
        self._first = self._closure({first}, _AT_START)
        self._steps: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        self._known: dict[str, bool] = {}

    def matches(self, name: str) -> bool:
        known = self._known.get(name)
        if known is None:
            if len(self._known) >= MAX_REMEMBERED:
                self._known.clear()
            known = self._known[name] = self._match(name)
        return known

    def _match(self, name: str) -> bool:
        states = self._first
        for character in name:
            known = self._steps.get((states, character))
            states = self._step(states, character) if known is None else known
            if not states:
                return False
        # An empty name is at its start and at its end; there is no topic with one.
        return self._accepting in self._closure(states, _AT_END)

    def _step(self, states: frozenset[int], character: str) -> frozenset[int]:
        if len(self._steps) >= MAX_REMEMBERED:
            self._steps.clear()
        conditions = self._conditions
        after = {
            way
            for state in states
            if isinstance(condition := conditions[state], frozenset) and character in condition
            for way in self._ways[state]
        }
        result = self._steps[states, character] = self._closure(after, None)
        return result

    def _closure(self, states: "set[int] | frozenset[int]", place: str | None) -> frozenset[int]:
        """With everything that is reached from them without a character."""
        reached = set(states)
        waiting = list(states)
        while waiting:
            state = waiting.pop()
            condition = self._conditions[state]
            if condition is None or condition == place:
                for way in self._ways[state]:
                    if way not in reached:
                        reached.add(way)
                        waiting.append(way)
        return frozenset(reached)

    def _state(self, condition: Characters | str | None, ways: list[int]) -> int:
        if len(self._ways) >= MAX_STATES:
            raise InvalidPattern("it is too large, repeats included")
        self._conditions.append(condition)
        self._ways.append(ways)
        return len(self._ways) - 1

    def _built(self, node: _Node, after: int) -> int:
        """The state at which the node begins, if what follows it begins at `after`."""
        match node:
            case _Sequence(items):
                for item in reversed(items):
                    after = self._built(item, after)
                return after
            case _Choice(items):
                return self._state(None, [self._built(item, after) for item in items])
            case _Repeat(item, least, most):
                begin = after
                if most is None:
                    begin = self._state(None, [after])
                    self._ways[begin].append(self._built(item, begin))
                else:
                    for _ in range(most - least):
                        begin = self._state(None, [after, self._built(item, begin)])
                for _ in range(least):
                    begin = self._built(item, begin)
                return begin
            case _:
                return self._state(node, [after])


class _Parser:
    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.position = 0
        self.depth = 0

    def parsed(self) -> _Node:
        node = self._choice()
        if self.position < len(self.pattern):
            raise InvalidPattern(f"there is an unmatched ) at {self.position}")
        return node

    def _peek(self) -> str:
        return self.pattern[self.position : self.position + 1]

    def _take(self) -> str:
        character = self._peek()
        if not character:
            raise InvalidPattern("it ends too early")
        self.position += 1
        return character

    def _skip(self, text: str) -> bool:
        found = self.pattern.startswith(text, self.position)
        self.position += len(text) * found
        return found

    def _choice(self) -> _Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise InvalidPattern(f"groups are nested deeper than {MAX_DEPTH}")
        items = [self._sequence()]
        while self._skip("|"):
            items.append(self._sequence())
        self.depth -= 1
        return items[0] if len(items) == 1 else _Choice(items)

    def _sequence(self) -> _Node:
        items: list[_Node] = []
        while self._peek() not in {"", "|", ")"}:
            items.append(self._repeated(self._atom()))
        return _Sequence(items)

    def _repeated(self, item: _Node) -> _Node:
        begin = self.position
        if self._skip("*"):
            bounds: tuple[int, int | None] | None = (0, None)
        elif self._skip("+"):
            bounds = (1, None)
        elif self._skip("?"):
            bounds = (0, 1)
        else:
            bounds = self._counts()
        if bounds is None:
            return item
        self._skip("?")  # to prefer less changes nothing about which names match
        if self._peek() in {"*", "+", "?"} or self._counts() is not None:
            raise InvalidPattern(f"there is a repeat of a repeat at {begin}")
        return _Repeat(item, *bounds)

    def _counts(self) -> tuple[int, int | None] | None:
        """`{2}`, `{2,}` or `{2,3}`; anything else in braces stands for itself."""
        end = self.pattern.find("}", self.position)
        if self._peek() != "{" or end < 0:
            return None
        least, comma, most = self.pattern[self.position + 1 : end].partition(",")
        if not (least.isascii() and least.isdigit() and (most.isdigit() or not most)):
            return None
        self.position = end + 1
        low = int(least[:5])
        high = int(most[:5]) if most else None if comma else low
        if max(low, high or 0) > MAX_REPEAT or (high is not None and high < low):
            raise InvalidPattern(f"there is a bad count of repeats at {end}")
        return low, high

    def _atom(self) -> _Node:
        begin = self.position
        match self._take():
            case "(":
                return self._group(begin)
            case "[":
                return self._set()
            case "\\":
                return self._escaped()
            case ".":
                return ALPHABET
            case "^":
                return _AT_START
            case "$":
                return _AT_END
            case "*" | "+" | "?":
                raise InvalidPattern(f"there is nothing to repeat at {begin}")
            case character:
                return frozenset(character)

    def _group(self, begin: int) -> _Node:
        if self._peek() == "?" and not self._skip("?:"):
            raise InvalidPattern(f"groups with flags or names are not served, at {begin}")
        node = self._choice()
        if not self._skip(")"):
            raise InvalidPattern(f"the ( at {begin} is never closed")
        return node

    def _escaped(self) -> Characters | str:
        character = self._take()
        if character == "A":
            return _AT_START
        if character == "z":
            return _AT_END
        return self._escaped_characters(character)

    def _escaped_characters(self, character: str) -> Characters:
        if character in _CLASSES:
            return _CLASSES[character]
        if character.isalnum() and character not in _CONTROL:
            raise InvalidPattern(f"\\{character} is not served")
        return frozenset[str]() if character in _CONTROL else frozenset(character)

    def _set(self) -> Characters:
        begin = self.position - 1
        negated = self._skip("^")
        found: set[str] = set()
        first = True
        while first or self._peek() != "]":
            if not self._peek():
                raise InvalidPattern(f"the [ at {begin} is never closed")
            first = False
            found |= self._set_item()
        self.position += 1
        return ALPHABET - found if negated else frozenset(found)

    def _set_item(self) -> Characters:
        if self._skip("[:"):
            raise InvalidPattern("named classes such as [:alpha:] are not served")
        low = self._take()
        if low == "\\":
            return self._escaped_characters(self._take())
        follows = self.pattern[self.position + 1 : self.position + 2]
        if self._peek() != "-" or follows in {"", "]"}:
            return frozenset(low)
        self.position += 1
        high = self._take()
        if high == "\\":
            high = self._take()
        if high < low:
            raise InvalidPattern(f"the range {low}-{high} is backwards")
        return frozenset(it for it in ALPHABET if low <= it <= high)
