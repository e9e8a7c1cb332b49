from chaos.gaps import Summary, by_fault, gaps
from chaos.history import Send
from tests.chaos.histories import Good, fault, send


def test_the_gap_of_a_fault_is_the_longest_silence_that_reaches_into_it() -> None:
    good = Good(count=4)  # acknowledged at 0.5, 1.5, 2.5, 3.5 s
    good.sends += [send(4, at=7.0), send(5, at=7.5)]
    good.others += [fault("pause", 2.0, 2.1, 0), fault("kill", 3.0, 5.0, 1)]
    first, second = gaps(good.history())
    assert (first.fault, first.seconds) == ("pause", 1.0)
    assert (second.fault, second.nodes, second.seconds) == ("kill", [1], 4.0)


def test_each_partition_has_its_own_silence() -> None:
    good = Good(count=10)
    good.sends += [send(0, "b", partition=1, at=1.0), send(1, "b", partition=1, at=6.0)]
    good.others.append(fault("kill", 2.0, 3.0, 0))
    (gap,) = gaps(good.history())
    assert (gap.seconds, gap.partition) == (5.0, 1)


def test_what_is_never_answered_again_counts_up_to_the_last_attempt() -> None:
    good = Good(count=2)
    good.sends.append(Send(client="a", topic="t", partition=0, value="a:2", at=31.5))
    good.others.append(fault("kill", 2.0, 3.0, 0))
    (gap,) = gaps(good.history())
    assert gap.seconds == 30.0


def test_gaps_are_compared_by_the_kind_of_fault() -> None:
    good = Good(count=4)
    good.sends += [send(4, at=7.0), send(5, at=7.5)]
    good.others += [fault("kill", 2.0, 2.1, 0), fault("kill", 3.0, 5.0, 1)]
    assert by_fault(gaps(good.history())) == [Summary("kill", 2, 2.5, 4.0)]


def test_without_faults_there_are_no_gaps_to_compare() -> None:
    assert gaps(Good().history()) == []
