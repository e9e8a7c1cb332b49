"""What the members of a group are subscribed to, by name and by pattern."""

from collections.abc import Mapping

from sapwood.coordinator.consumer_member import MemberMetadata
from sapwood.coordinator.effects import Topics
from sapwood.coordinator.topic_pattern import TopicPattern
from sapwood.wire.errors import ErrorCode, KafkaError

MAX_PATTERNS = 10
"""Different ones in a group: each is held against all topics whenever one is made."""


class Subscriptions:
    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._patterns: dict[str, TopicPattern] = {}
        """Those in use; they remember which names they match."""

    def check(self, expression: str | None) -> None:
        """Whether a member may use it."""
        if expression and expression not in self._patterns and len(self._patterns) >= MAX_PATTERNS:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"The members of the group use {MAX_PATTERNS} different patterns already",
            )

    def names(self, members: Mapping[str, MemberMetadata]) -> dict[str, frozenset[str]]:
        """By member. Topics may not exist yet; internal ones have to be named."""
        used = {it.subscribed_topic_regex for it in members.values()}
        self._patterns = {
            expression: self._patterns.get(expression) or TopicPattern(expression)
            for expression in used
            if expression
        }
        known = []
        if self._patterns:
            known = [it.name for it in self._topics if not it.name.startswith("__")]
        matching = {
            expression: frozenset(filter(pattern.matches, known))
            for expression, pattern in self._patterns.items()
        }
        return {
            member_id: frozenset(it.subscribed_topic_names).union(
                matching.get(it.subscribed_topic_regex or "", ())
            )
            for member_id, it in members.items()
        }
