"""Votes that this node asks for: per other node one message at a time, for many groups together.

What comes up while a message is under way goes into the next one, and of several questions about
one group only the newest. So a node that is slow to answer is asked less, and not ever more.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

from sapwood.raft import Elected, Follower, Group, Vote, VoteAnswer, Voter
from sapwood.replica.partition import GroupKey, Partition
from sapwood.wire.codec import Struct

MOST_GROUPS = 50
"""In one message between nodes: whoever handles it has others to answer, too."""

Lane = tuple[int, bool]
"""A node, and whether it is about the metadata, which must not wait behind thousands of topics."""
Question = tuple[Partition, Vote]


class Asking:
    def __init__(
        self,
        request: Callable[[int, list[Struct]], Awaitable[list[Struct]]],
        flush: Callable[[], asyncio.Future[None]],
        start: Callable[[Awaitable[None]], None],
    ) -> None:
        """`request` yields what a node answers, nothing if it doesn't."""
        self._request = request
        self._flush = flush
        self._start = start
        self._questions: dict[Lane, dict[GroupKey, Question]] = {}
        self._asked: dict[Lane, dict[GroupKey, Question]] = {}

    def ask(self, partition: Partition, vote: Vote, nodes: tuple[int, ...]) -> None:
        for node in nodes:
            lane = node, partition.hurries
            if lane not in self._questions:
                self._questions[lane] = {}
                self._start(self._ask_all(lane))
            self._questions[lane][partition.key] = partition, vote

    def is_waiting(self, partition: Partition) -> bool:
        """Whether an answer about it may still come: to ask again would only make it later."""
        key, hurries = partition.key, partition.hurries
        return any(
            lane[1] == hurries and (key in questions or key in self._asked.get(lane, ()))
            for lane, questions in self._questions.items()
        )

    async def _ask_all(self, lane: Lane) -> None:
        questions = self._questions[lane]
        try:
            while questions:
                asked = {key: questions.pop(key) for key in _first(questions)}
                self._asked[lane] = asked
                # After these were taken, for nobody may hear of a vote that isn't durable.
                await self._flush()
                await self._ask(lane[0], {key: it for key, it in asked.items() if _is_open(*it)})
        except OSError:
            return  # it isn't durable; upkeep reports what is wrong with the journal
        finally:
            del self._questions[lane]
            self._asked.pop(lane, None)

    async def _ask(self, node: int, asked: dict[GroupKey, Question]) -> None:
        if not asked:
            return
        groups = [
            Struct(
                topic_id=partition.topic_id,
                partition=partition.index,
                term=vote.term,
                pre_vote=vote.pre,
                incarnation=vote.candidate.incarnation,
                last_epoch=vote.position.epoch,
                end_offset=vote.position.offset,
            )
            for partition, vote in asked.values()
        ]
        answers = await self._request(node, groups)
        now = asyncio.get_running_loop().time()
        for it in answers:
            found = asked.get((it.topic_id, it.partition))
            if found is not None:
                partition, vote = found
                voter = Voter(node, it.incarnation)
                answer = VoteAnswer(it.term, voter, it.granted, vote.pre, it.leader)
                partition.tell(Group.vote_answered, now, answer)


def _first(questions: dict[GroupKey, Question]) -> list[GroupKey]:
    return list(itertools.islice(questions, MOST_GROUPS))


def _is_open(partition: Partition, vote: Vote) -> bool:
    """Whether the answer still matters: the question may have waited in line."""
    group = partition.group
    return group.term == vote.term and not isinstance(group.role, Follower | Elected)
