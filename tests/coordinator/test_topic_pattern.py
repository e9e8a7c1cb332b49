"""Patterns of topic names: they match what `re` matches, and can't hold anybody up."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.coordinator.topic_pattern import InvalidPattern, TopicPattern

atoms = st.sampled_from(
    ["a", "b", "-", r"\.", ".", "[ab]", "[^a]", r"\d", r"\w", "[a-c._]", "^", "$"]
)
patterns = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda made: f"({'|'.join(made)})"),
        st.tuples(
            inner.map(lambda made: f"(?:{made})"),
            st.sampled_from(["*", "+", "?", "*?", "{2}", "{1,}", "{0,2}"]),
        ).map("".join),
    ),
    max_leaves=8,
)


@given(pattern=patterns, names=st.lists(st.text("ab1c.-_", min_size=1, max_size=6)))
def test_a_pattern_matches_the_whole_names_that_re_matches(pattern: str, names: list[str]) -> None:
    made = TopicPattern(pattern)
    for name in names:
        # Only RE2's \z is at the very end; $ of `re` could stop before a newline, which names lack.
        assert made.matches(name) == (re.fullmatch(pattern, name) is not None), name


def test_an_expression_that_makes_others_backtrack_for_ever_is_just_matched() -> None:
    pattern = TopicPattern("(a|a)*(a*)*" + "a?" * 100 + "b")
    assert not pattern.matches("a" * 249)
    assert pattern.matches("a" * 248 + "b")


@pytest.mark.parametrize(
    "pattern",
    [
        "(", ")", "a)", "[a", "[]", "*", "a**", "+", "a{2}{3}*", "a{3,2}", "a{9999}", r"\p", "\\",
        "(?i)a", "[[:alpha:]]", "[b-a]", "(" * 60 + ")" * 60, "(a{1000}){1000}", "a" * 1001,
    ],
)  # fmt: skip
def test_what_can_not_be_served_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidPattern):
        TopicPattern(pattern)


def test_patterns_as_people_write_them() -> None:
    assert TopicPattern("^orders-.*").matches("orders-eu")
    assert not TopicPattern("^orders-.*").matches("my-orders-eu")
    assert TopicPattern(r"(a|b)\.v[0-9]+$").matches("b.v12")
    assert TopicPattern("[]a-]+").matches("a-a")
    assert not TopicPattern("a{x}").matches("a")
