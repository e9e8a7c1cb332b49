"""Single properties of a replica that no script tells."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from sapwood.raft import (
    NOBODY,
    START,
    Ask,
    Behind,
    Changed,
    Committed,
    Contact,
    Diverging,
    Elected,
    Group,
    HandOver,
    HardState,
    InStep,
    Leader,
    NotLeader,
    Position,
    Progress,
    Prospective,
    RaftViolation,
    Save,
    Timing,
    Unattached,
    Vote,
    VoteAnswer,
    Voter,
    Voters,
)
from sim.consensus.memory import MemoryLog, Tree

ZERO, ONE, TWO = (Voter(node, 0) for node in range(3))
THREE_VOTERS = (ZERO, ONE, TWO)


@dataclass
class Heard(Contact):
    heard_at: float = 0.0
    promised: int = -1


def group_of(
    me: Voter = ZERO,
    voters: Voters = THREE_VOTERS,
    *,
    log: MemoryLog | None = None,
    state: HardState = HardState(),  # noqa: B008
    high_watermark: int = 0,
) -> tuple[Group, MemoryLog]:
    log = log or MemoryLog(Tree())
    group = Group(me, log, voters, state, high_watermark=high_watermark, timing=Timing(), now=0.0)
    return group, log


def log_of(*epochs: int) -> MemoryLog:
    """A log with one record in each of these epochs."""
    log = MemoryLog(Tree())
    for epoch in epochs:
        log.append_marker(epoch)
        log.grow(epoch)
    return log


def leader_of_three(log: MemoryLog | None = None) -> tuple[Group, MemoryLog]:
    """Elected by 1 at time 0, and nothing is synced yet."""
    group, log = group_of(log=log)
    group.tick(0.0)
    group.vote_answered(0.0, VoteAnswer(group.term, ONE, granted=True, pre=True))
    group.vote_answered(0.0, VoteAnswer(group.term, ONE, granted=True, pre=False))
    assert isinstance(group.role, Elected)
    group.take()
    return group, log


def fetched(
    group: Group,
    replica: Voter,
    position: Position,
    durable: Position | None = None,
    *,
    at: float = 0.0,
) -> object:
    return group.fetched(
        replica, group.term, position, durable or position, 0, Heard(heard_at=at), at
    )


# -- starting


def test_a_log_ahead_of_the_journal_gives_the_term_and_no_vote_in_it() -> None:
    group, _ = group_of(log=log_of(1, 4), state=HardState(3, ONE))
    assert group.take() == [Save(HardState(4, ZERO))]
    vote = Vote(4, ONE, Position(9, 9), pre=False)
    assert not group.vote_asked(0.0, vote).granted
    assert group.vote_asked(0.0, vote._replace(term=5)).granted


def test_what_lies_below_the_start_of_the_log_is_committed() -> None:
    log = log_of(1, 2, 3)
    log.start_offset = 2
    group, _ = group_of(log=log, state=HardState(3))
    assert group.high_watermark == 2


def test_a_single_voter_leads_at_once_and_commits_when_it_has_synced() -> None:
    group, log = group_of(voters=(ZERO,))
    group.tick(0.0)
    assert type(group.role) is Elected
    log.grow(group.term)
    group.synced(log.position)
    assert type(group.role) is Leader
    assert group.high_watermark == 1


# -- votes


def test_a_vote_that_is_asked_for_twice_is_granted_twice_and_saved_once() -> None:
    group, _ = group_of()
    vote = Vote(1, ONE, START, pre=False)
    assert group.vote_asked(0.0, vote).granted
    assert Save(HardState(1, ONE)) in group.take()
    assert group.vote_asked(0.0, vote).granted
    assert group.take() == [Changed()]


def test_a_vote_is_never_given_to_another_one_in_the_same_term() -> None:
    group, _ = group_of(state=HardState(1, ONE))
    assert not group.vote_asked(0.0, Vote(1, TWO, Position(9, 9), pre=False)).granted
    came_back = Vote(1, Voter(1, 7), Position(9, 9), pre=False)
    assert not group.vote_asked(0.0, came_back).granted


def test_a_vote_goes_to_nobody_whose_log_ends_before_the_own_one() -> None:
    group, _ = group_of(log=log_of(1, 3), state=HardState(3))
    shorter, older, same = Position(3, 1), Position(2, 9), Position(3, 2)
    assert not group.vote_asked(0.0, Vote(4, ONE, shorter, pre=False)).granted
    assert not group.vote_asked(0.0, Vote(5, ONE, older, pre=False)).granted
    assert group.vote_asked(0.0, Vote(6, ONE, same, pre=False)).granted


def test_a_question_whether_one_would_vote_changes_nothing_at_a_follower() -> None:
    group, _ = group_of()
    group.announced(0.0, 1, 1)
    group.take()
    answer = group.vote_asked(0.0, Vote(7, TWO, Position(9, 9), pre=True))
    assert answer == VoteAnswer(1, ZERO, granted=False, pre=True, leader=1)
    assert group.take() == []


def test_votes_of_other_incarnations_and_earlier_terms_do_not_count() -> None:
    group, _ = group_of()
    group.tick(0.0)
    group.vote_answered(0.0, VoteAnswer(0, ONE, granted=True, pre=True))
    assert group.term == 1
    group.vote_answered(0.0, VoteAnswer(1, Voter(1, 7), granted=True, pre=False))
    group.vote_answered(0.0, VoteAnswer(0, ONE, granted=True, pre=False))
    group.vote_answered(0.0, VoteAnswer(1, TWO, granted=True, pre=True))
    assert group.leader == NOBODY
    group.vote_answered(0.0, VoteAnswer(1, TWO, granted=True, pre=False))
    assert group.leader == 0


def test_a_replica_without_a_vote_stands_if_it_holds_more_than_one_who_needs_its_vote() -> None:
    group, _ = group_of(Voter(3, 0), log=log_of(1, 4), state=HardState(4))
    assert group.deadline == float("inf")
    group.vote_asked(0.0, Vote(4, ONE, Position(4, 2), pre=True))
    assert group.deadline == float("inf"), "it isn't in the way"
    assert not group.vote_asked(0.0, Vote(4, ONE, Position(3, 9), pre=True)).granted
    group.take()
    group.tick(group.deadline)
    asked = Ask(Vote(4, Voter(3, 0), Position(4, 2), pre=True), (0, 1, 2))
    assert group.take() == [Changed(), asked]
    group.announced(9.0, 1, 5)
    group.told(0)
    group.leader_lost(9.0)
    assert group.deadline == float("inf"), "it was led in between"


def test_two_leaders_in_an_epoch_are_noticed() -> None:
    group, _ = leader_of_three()
    with pytest.raises(RaftViolation, match="both lead in epoch 1"):
        group.announced(0.0, 1, 1)
    follower, _ = group_of()
    follower.announced(0.0, 1, 1)
    with pytest.raises(RaftViolation, match="both lead in epoch 1"):
        follower.announced(0.0, 2, 1)


def test_replicas_that_always_stand_together_do_not_wait_for_the_same_time_for_ever() -> None:
    """Whatever the order of successors was: here each believes to be the first one."""

    def waits(node: int) -> list[float]:
        group, _ = group_of(Voter(node, 0), (Voter(node, 0), Voter(7, 0)))
        found = []
        for _ in range(12):
            now = group.deadline
            group.tick(now)
            found.append(round(group.deadline - now, 3))
        return found

    for attempt in range(12):
        times = {waits(node)[attempt] for node in range(5)}
        assert max(times) - min(times) > 0.1, times
    assert max(waits(3)) <= 4 * 2 * Timing().round_s


def test_a_replica_that_is_told_of_a_leader_it_cannot_reach_asks_less_and_less_often() -> None:
    group, _ = group_of()
    now, attempts = 0.0, 0
    while now < 60.0:
        now = max(now, group.deadline)
        group.tick(now)
        attempts += 1
        group.vote_answered(now, VoteAnswer(0, ONE, granted=False, pre=True, leader=2))
        group.leader_lost(now)
    assert attempts < 70


def test_a_leader_that_was_lost_is_followed_again_when_it_speaks_or_others_follow_it_for_long() -> (
    None
):
    def lost() -> Group:
        group, _ = group_of()
        group.announced(0.0, 2, 1)
        group.leader_lost(1.0)
        return group

    hearsay = VoteAnswer(1, ONE, granted=False, pre=True, leader=2)
    group = lost()
    group.vote_answered(1.9, hearsay)
    assert group.leader == NOBODY
    group.vote_answered(2.1, hearsay)
    assert group.leader == 2
    group = lost()
    group.vote_answered(1.1, hearsay._replace(voter=TWO))
    assert group.leader == 2
    group = lost()
    group.vote_answered(1.1, hearsay._replace(leader=1, term=2))
    assert group.leader == 1


def test_of_two_that_ask_each_other_whether_they_would_win_one_steps_back() -> None:
    zero, _ = group_of(ZERO)
    one, _ = group_of(ONE)
    zero.tick(0.0)
    one.tick(0.1)
    assert zero.vote_asked(0.1, Vote(0, ONE, START, pre=True)).granted
    assert isinstance(zero.role, Prospective)
    assert one.vote_asked(0.1, Vote(0, ZERO, START, pre=True)).granted
    assert isinstance(one.role, Unattached)
    assert one.deadline > 0.1 + Timing().round_s


# -- leading


def test_what_an_earlier_leader_left_is_committed_only_by_what_lies_on_top_of_it() -> None:
    group, log = leader_of_three(log_of(0))
    old, own = Position(0, 1), log.position
    group.synced(old)
    fetched(group, ONE, old)
    fetched(group, TWO, old)
    assert type(group.role) is Elected
    assert group.high_watermark == 0
    fetched(group, ONE, own)
    group.synced(own)
    assert type(group.role) is Leader
    assert group.high_watermark == 1


def test_a_replica_holds_for_good_no_more_than_it_holds() -> None:
    group, log = leader_of_three()
    log.grow(1)
    group.synced(log.position)
    fetched(group, ONE, Position(1, 0), durable=Position(1, 1))
    assert group.high_watermark == 0


def test_a_replica_is_told_to_cut_back_to_begin_anew_or_to_look_elsewhere() -> None:
    group, _ = leader_of_three(log_of(0))
    assert fetched(group, ONE, Position(0, 1)) == InStep()
    assert fetched(group, ONE, Position(0, 2)) == Diverging(0, 1)
    assert fetched(group, ONE, START) == InStep()
    assert group.fetched(ONE, 0, START, START, 0, Heard(), 0.0) == NotLeader(1, 0)
    assert group.fetched(ONE, 5, START, START, 0, Heard(), 0.0) == NotLeader(5, NOBODY)


def test_a_replica_that_needs_what_is_gone_begins_anew() -> None:
    log = log_of(1, 2, 3)
    group, _ = group_of(voters=(ZERO,), log=log, state=HardState(3))
    group.tick(0.0)
    log.start_offset = 3
    assert fetched(group, ONE, Position(1, 1)) == Behind()
    assert fetched(group, ONE, START) == Behind()
    assert fetched(group, ONE, Position(3, 3)) == InStep()
    assert fetched(group, ONE, Position(2, 4)) == Behind()


def test_a_replica_that_has_to_cut_back_still_follows_and_counts_for_nothing() -> None:
    group, log = leader_of_three(log_of(0))
    group.synced(log.position)
    contact = Heard(heard_at=5.0)
    diverging = Position(0, 2)
    group.fetched(ONE, group.term, diverging, diverging, 0, contact, 5.0)
    assert group.has_quorum(5.0)
    contact.heard_at = 9.0
    assert not group.has_quorum(9.0), "its node lives, but it may be offline"
    assert group.in_sync(5.0) == [0, 1]  # nothing is committed yet
    assert type(group.role) is Elected


def test_a_leader_that_was_stopped_has_no_quorum_until_it_is_heard() -> None:
    group, _ = leader_of_three()
    fetched(group, ONE, START, at=0.5)
    assert group.has_quorum(1.4)
    assert not group.has_quorum(60.0)
    fetched(group, ONE, START, at=60.0)
    assert group.has_quorum(60.0)


def test_a_leader_without_a_quorum_keeps_its_office_for_a_while_but_not_for_ever() -> None:
    group, _ = leader_of_three()
    fetched(group, ONE, START, at=60.0)
    group.tick(62.0)
    assert group.leader == ZERO.node
    assert not group.has_quorum(62.0)
    assert group.holds_office(62.0)
    asked = group.vote_asked(62.0, Vote(group.term, ONE, Position(9, 9), pre=True))
    assert asked.granted, "nobody is kept from electing another one"
    group.tick(66.0)
    assert isinstance(group.role, Unattached)


def test_the_others_of_a_new_group_leave_its_first_leader_the_time_to_learn_of_it() -> None:
    first, _ = group_of()
    assert first.deadline == 0.0
    second, _ = group_of(ONE)
    assert second.deadline > second.timing.silence_s
    seasoned, _ = group_of(ONE, state=HardState(1))
    assert seasoned.deadline < seasoned.timing.silence_s


def test_when_a_node_comes_back_as_another_one_the_old_one_is_forgotten() -> None:
    group, log = leader_of_three()
    fetched(group, ONE, log.position)
    fetched(group, Voter(1, 7), START)
    role = group.role
    assert isinstance(role, Elected)
    assert list(role.progress) == [Voter(1, 7)]
    assert ONE not in role.durable


def test_more_than_a_majority_can_be_asked_for() -> None:
    group, log = leader_of_three()
    log.grow(1)
    group.synced(log.position)
    fetched(group, ONE, log.position)
    assert group.acknowledged(2) == group.high_watermark == 1
    assert group.acknowledged(3) == -1
    fetched(group, TWO, log.position)
    assert group.acknowledged(3) == 1


def test_leadership_is_handed_over_to_a_voter_in_step_or_kept_after_a_while() -> None:
    group, log = leader_of_three()
    group.synced(log.position)
    assert not group.hand_over(1, 0.0), "not confirmed yet"
    fetched(group, ONE, log.position, at=0.5)
    assert not group.hand_over(2, 0.5), "not heard of"
    assert not group.hand_over(0, 0.5), "to itself"
    assert not group.hand_over(1, 2.0), "silent by now: nobody could write while it is waited for"
    log.grow(1)
    group.take()
    assert group.hand_over(1, 0.5)
    assert group.take() == []
    group.step_towards([0], 0.5)
    assert log.voters is None, "nothing is appended meanwhile"
    fetched(group, ONE, log.position, at=0.6)
    assert HandOver(1, 1) in group.take()
    fetched(group, ONE, log.position, at=1.4)
    group.tick(1.6)
    assert isinstance(group.role, Leader)
    assert group.role.successor is None


def test_voters_are_changed_only_by_a_confirmed_leader_and_one_change_at_a_time() -> None:
    group, log = leader_of_three()
    learner = Voter(3, 0)
    fetched(group, ONE, START)
    fetched(group, learner, log.position)
    group.step_towards([0, 1, 2, 3], 0.0)
    assert not log.records
    group.synced(log.position)
    fetched(group, ONE, log.position)
    group.step_towards([0, 1, 2, 3], 0.0)
    assert log.voters == (0, (*THREE_VOTERS, learner))
    fetched(group, Voter(4, 0), log.position)
    group.step_towards([0, 1, 2, 3, 4], 0.0)
    assert log.voters == (0, (*THREE_VOTERS, learner))


def test_a_replica_that_is_always_a_moment_behind_can_become_a_voter() -> None:
    progress = Progress(Heard(heard_at=1e9))
    progress.durable = Position(1, 100)
    for second in range(10):
        committed = 1000 * second + 1000
        progress.reached(committed, float(second))
        progress.durable = Position(1, committed)
    assert progress.keeps_up(10_999, since=7.0)
    assert not progress.keeps_up(10_999, since=8.5), "it stands still since then"


def test_a_replica_that_catches_up_slowly_does_not_keep_up() -> None:
    progress = Progress(Heard(heard_at=1e9))
    for second in range(10):
        progress.durable = Position(1, 100 * second)
        progress.reached(100_000, float(second))
    assert not progress.keeps_up(100_000, since=0.0)
    progress.durable = Position(1, 100_000)
    assert progress.keeps_up(100_000, since=0.0)


# -- without a majority


def test_a_voter_speaks_for_a_minority_only_while_nobody_else_is_there_to_elect() -> None:
    group, _ = group_of()
    assert group.speaks_for_minority(5.0)
    group.vote_asked(6.0, Vote(0, ONE, START, pre=True))
    assert not group.speaks_for_minority(6.1), "one of the two is about to lead"
    heard_until = 6.0 + Timing().attempts_s
    assert not group.speaks_for_minority(heard_until - 0.1)
    assert group.speaks_for_minority(heard_until + 0.1)
    group.vote_answered(20.0, VoteAnswer(0, TWO, granted=False, pre=True))
    assert not group.speaks_for_minority(20.1)


def test_of_a_minority_only_the_first_speaks() -> None:
    voters = tuple(Voter(node, 0) for node in range(5))
    for me, other, speaks in ((ONE, TWO, True), (TWO, ONE, False)):
        group, _ = group_of(me, voters)
        group.vote_asked(5.0, Vote(0, other, START, pre=True))
        assert group.speaks_for_minority(5.1) is speaks


def test_whoever_has_no_vote_neither_speaks_for_a_minority_nor_counts_in_one() -> None:
    wiped = Voter(1, 1)
    group, _ = group_of(wiped)
    assert not group.speaks_for_minority(5.0)
    group, _ = group_of()
    group.vote_asked(5.0, Vote(0, wiped, START, pre=True))
    assert group.speaks_for_minority(5.1), "with it nobody can be elected"


def test_who_took_part_in_an_election_that_is_over_no_longer_counts() -> None:
    group, _ = group_of()
    group.vote_asked(5.0, Vote(0, ONE, START, pre=True))
    group.announced(5.1, 1, 1)
    group.leader_lost(5.2)
    assert group.speaks_for_minority(5.3)


# -- following


def follower(log: MemoryLog, high_watermark: int = 0) -> Group:
    group, _ = group_of(log=log, state=HardState(3), high_watermark=high_watermark)
    group.announced(0.0, 1, 4)
    group.take()
    return group


def test_a_follower_takes_for_committed_no_more_than_it_has_and_never_less_than_before() -> None:
    group = follower(log_of(1, 2))
    group.told(9)
    assert group.take() == [Committed(2)]
    group.told(1)
    assert group.take() == []
    assert group.high_watermark == 2


def test_a_follower_refuses_to_cut_what_is_committed() -> None:
    group = follower(log_of(1, 2, 3), high_watermark=2)
    with pytest.raises(RaftViolation, match="all below 2 is committed"):
        group.diverged(1, 1)


def test_a_follower_cuts_to_the_end_of_an_epoch_that_both_know() -> None:
    log = log_of(1, 3)
    follower(log).diverged(2, 5)
    assert log.position == Position(1, 1)
    follower(log).diverged(-1, 0)
    assert log.position == START


def test_an_order_to_cut_that_comes_late_cuts_nothing_of_the_leaders_epoch() -> None:
    log = log_of(1, 4)
    follower(log).diverged(1, 1)
    assert log.position == Position(4, 2)


# -- closed times


def test_a_time_is_agreed_on_once_a_majority_has_promised_it_and_the_epoch_is_committed() -> None:
    group, log = leader_of_three()
    contact = Heard(promised=70)
    group.fetched(ONE, group.term, log.position, log.position, 0, contact, 0.0)
    assert group.agreed_time(100) == -1, "what lies below its own epoch may yet be committed"
    group.synced(log.position)
    assert group.agreed_time(100) == 70
    contact.promised = 90
    assert (group.agreed_time(100), group.agreed_time(80)) == (90, 80)
    group.fetched(TWO, group.term, log.position, log.position, 0, Heard(promised=95), 0.0)
    assert (group.agreed_time(100), group.agreed_time(50)) == (95, 90)


def test_who_follows_no_more_or_is_no_voter_has_promised_nothing() -> None:
    group, log = leader_of_three()
    group.synced(log.position)
    for replica in (ONE, Voter(2, 7)):
        contact = Heard(promised=70)
        group.fetched(replica, group.term, log.position, log.position, 0, contact, 0.0)
    assert group.agreed_time(100) == 70
    group.fell_behind(ONE)
    assert group.agreed_time(100) == -1, "what its node says may come after it has voted"
    group.fetched(ONE, group.term, log.position, log.position, 0, Heard(promised=70), 0.0)
    group.forget(ONE)
    assert group.agreed_time(100) == -1


def test_a_single_voter_agrees_with_itself() -> None:
    group, log = group_of(voters=(ZERO,))
    group.tick(0.0)
    group.synced(log.position)
    assert group.agreed_time(100) == 100
