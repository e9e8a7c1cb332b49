"""Each checker must see the fault it is there to see, and call a good history good."""

import pytest

from chaos.checkers import CHECKERS, judge
from chaos.history import Offline, Send, Trouble
from tests.chaos.histories import TOPIC, Good, end, fault, read, send


def found(good: Good) -> dict[str, list[str]]:
    """Problems by checker, of the checkers that found any."""
    return {
        name: [str(it) for it in problems]
        for name, problems in judge(good.history()).items()
        if problems
    }


def test_a_good_history_is_clean() -> None:
    assert found(Good()) == {}


def test_an_acknowledged_record_that_is_not_there_is_lost() -> None:
    good = Good()
    good.sends.append(send(10, node=2))
    problems = found(good)
    assert problems.keys() == {"lost"}
    assert "t-0@10: a:10, acknowledged at 10.5 s by node 2" in problems["lost"][0]


def test_a_record_lost_to_one_of_two_final_readers_is_lost() -> None:
    good = Good()
    good.reads.append(read("kcat", 0, *good.final.values[:-1], final=True))
    assert "wasn't found by kcat" in found(good)["lost"][0]


@pytest.mark.parametrize("outcome", ["fail", "unknown"])
def test_a_record_that_was_not_acknowledged_may_be_missing(outcome: str) -> None:
    good = Good()
    good.sends.append(send(10, outcome=outcome, offset=-1))
    good.others.append(fault("kill", 1.0, 2.0, 0))
    assert found(good) == {}


@pytest.mark.parametrize("outcome", ["fail", "unknown"])
def test_a_record_that_was_not_acknowledged_may_be_there(outcome: str) -> None:
    good = Good()
    good.sends[9] = send(9, outcome=outcome, offset=-1)
    good.others.append(fault("kill", 1.0, 2.0, 0))
    assert found(good) == {}


def test_a_partition_that_nobody_could_read_at_the_end_is_unreadable() -> None:
    good = Good()
    good.reads.remove(good.final)
    good.others.append(Offline(topic=TOPIC, partition=0, reason="bad checksum"))
    assert "bad checksum" in found(good)["unreadable"][0]


def test_a_history_without_a_final_reading_proves_nothing() -> None:
    good = Good()
    good.reads.remove(good.final)
    assert "nobody read the log" in found(good)["unreadable"][0]


def test_a_final_reader_that_left_out_a_partition_is_noticed() -> None:
    good = Good()
    good.sends.append(send(0, "b", partition=1, at=3.0))
    assert found(good)["unreadable"] == ["unreadable at t-1: final didn't come to its end"]


def test_the_only_copy_may_be_refused_after_it_was_damaged() -> None:
    good = Good(replicas=1)
    good.reads.remove(good.final)
    good.reads.append(read("final", 0, "b:0", partition=1, final=True))
    good.copies.clear()
    good.sends.append(send(0, "b", partition=1, at=31.0))
    good.others += [
        Offline(topic=TOPIC, partition=0, reason="bad checksum"),
        fault("flip", 30.0, 30.5, 0, topic=TOPIC, partition=0),
    ]
    assert found(good) == {}
    good.replicas = 3
    assert found(good).keys() == {"unreadable", "silent"}


def test_a_record_that_is_there_twice_is_doubled() -> None:
    good = Good()
    good.final.values.append("a:3")
    assert "t-0@3: a:3 is also at t-0@10" in found(good)["doubled"][0]


def test_a_record_that_is_in_two_partitions_is_doubled() -> None:
    good = Good()
    good.sends[3] = send(3, partition=-1)
    good.reads.append(read("final", 0, "a:3", partition=1, final=True))
    assert len(found(good)["doubled"]) == 1


def test_two_exchanged_records_are_reordered() -> None:
    good = Good()
    values = good.final.values
    values[4], values[5] = values[5], values[4]
    assert "t-0@5: a:4 comes after a:5" in found(good)["reordered"][0]


def test_producers_may_interleave_and_partitions_have_no_common_order() -> None:
    good = Good(count=2)
    good.sends += [send(0, "b", partition=1), send(1, "b", partition=1), send(2, "b", offset=2)]
    good.final.values.append("b:2")
    good.copies.clear()
    good.reads.append(read("final", 0, "b:0", "b:1", partition=1, final=True))
    assert found(good) == {}


@pytest.mark.parametrize("value", ["a:99", "stranger:0", "damaged:00c0ffee:b'x'"])
def test_a_record_that_nobody_sent_is_invented(value: str) -> None:
    good = Good()
    good.final.values.append(value)
    assert f"final read {value}, which nobody sent" in found(good)["invented"][0]


def test_a_record_that_a_reader_saw_on_the_way_must_have_been_sent_too() -> None:
    good = Good()
    good.reads.insert(0, read("other", 3, "a:99", at=4.0, node=2))
    assert "other (node 2) read a:99" in found(good)["invented"][0]


def test_a_record_in_a_partition_it_was_not_sent_to_is_invented() -> None:
    good = Good()
    good.reads.append(read("final", 0, "a:3", partition=1, final=True))
    assert "sent to t-0" in found(good)["invented"][0]


def test_an_offset_that_two_readers_saw_with_different_contents_has_changed() -> None:
    good = Good()
    good.reads.insert(0, read("early", 3, "a:4", at=4.0, node=1))
    problems = found(good)["changed"]
    assert "the acknowledgement of some node to a at 3.5 s says a:3" in problems[0]
    assert "early (node 1) says a:4" in problems[0]


def test_a_record_acknowledged_at_another_offset_than_it_is_found_at_has_changed() -> None:
    good = Good()
    good.sends[3].offset = 4
    assert "changed" in found(good)


def test_an_acknowledgement_that_names_no_offset_is_no_contradiction() -> None:
    good = Good()
    good.sends[3].offset = -1
    assert found(good) == {}


def test_a_record_that_was_readable_and_then_gone_has_changed() -> None:
    good = Good()
    good.sends.append(send(10, outcome="unknown", offset=-1))
    good.reads.insert(0, read("dirty", 10, "a:10", at=11.0))
    assert "dirty read a:10, later it was gone" in found(good)["changed"][0]


def test_a_reader_that_gets_an_earlier_offset_again_went_back() -> None:
    good = Good()
    good.reads.insert(2, read("reader", 7, *good.final.values[7:], at=22.0, node=1))
    assert "reader was at 10 and got this from node 1" in found(good)["went back"][0]


def test_a_reader_that_is_told_that_its_place_is_not_there_saw_the_end_go_back() -> None:
    good = Good()
    good.reads.insert(2, read("reader", 10, at=22.0, error="OFFSET_OUT_OF_RANGE"))
    assert "OFFSET_OUT_OF_RANGE" in found(good)["went back"][0]


def test_an_end_below_an_earlier_acknowledgement_is_stale() -> None:
    good = Good()
    good.ends.append(end(9, at=9.6, node=1))
    text = found(good)["stale end"][0]
    assert "asked at 9.6 s, node 1 said 9; 9 was acknowledged by some node at 9.5 s" in text


def test_an_end_below_one_told_by_another_node_before_is_stale() -> None:
    good = Good()
    good.sends.append(send(10, outcome="unknown", offset=-1))
    good.ends += [end(11, at=9.6, node=1), end(10, at=9.8, node=0)]
    assert "10 was the end that node 1 told" in found(good)["stale end"][0]


def test_an_end_below_what_was_read_before_is_stale() -> None:
    good = Good()
    good.reads.insert(0, read("quick", 9, "a:9", at=9.1))
    good.ends.append(end(9, at=9.3))
    assert "read by quick at 9.2 s" in found(good)["stale end"][0]


def test_an_end_asked_for_before_the_acknowledgement_came_may_be_lower() -> None:
    good = Good()
    good.ends.append(end(9, at=9.4))
    assert found(good) == {}


def test_a_reader_that_went_past_a_record_skipped_it() -> None:
    good = Good()
    good.reads[1] = read("reader", 6, *good.final.values[6:], at=21.0)
    assert "t-0@5: reader went from here to 6" in found(good)["skipped"][0]


def test_an_offset_that_holds_no_record_is_not_skipped() -> None:
    """A control record takes an offset that no reader is shown."""
    good = Good()
    good.sends += [send(11)]
    good.copies.clear()
    good.reads += [
        read("reader", 11, "a:11", at=22.0),
        read("final", 11, "a:11", final=True),
    ]
    assert found(good) == {}


def test_a_copy_that_lacks_a_record_diverges() -> None:
    good = Good()
    good.copies[1].values.pop()
    assert found(good)["diverged"] == [
        "diverged at t-0: node 0 has [(9, 'a:9')] (10 in all), node 1 has [] (9 in all)"
    ]


def test_a_copy_with_another_record_diverges() -> None:
    good = Good()
    good.copies[2].values[4] = "a:5"
    text = "node 0 has [(4, 'a:4')] (10 in all), node 2 has [(4, 'a:5')] (10 in all)"
    assert text in found(good)["diverged"][0]


def test_copies_that_agree_with_each_other_but_not_with_the_readers_diverge() -> None:
    good = Good()
    for copy in good.copies:
        copy.values.pop()
    assert "final has [(9, 'a:9')]" in found(good)["diverged"][0]


def test_a_write_that_a_resumed_old_leader_accepted_and_that_is_gone_is_found() -> None:
    good = Good()
    good.others.append(fault("pause", 4.0, 9.0, 1))
    good.sends.append(send(0, "probe", at=9.1, node=1, offset=10))
    problems = found(good)["old leader"]
    assert problems == [
        "old leader at t-0@10: node 1, paused from 4.0 to 9.0 s, accepted probe:0 at 9.6 s"
    ]


def test_a_write_that_another_node_accepted_is_not_the_old_leaders_fault() -> None:
    good = Good()
    good.others.append(fault("pause", 4.0, 9.0, 1))
    good.sends.append(send(0, "probe", at=9.1, node=2, offset=10))
    assert found(good).keys() == {"lost"}


def test_a_partition_that_takes_nothing_after_the_last_fault_is_silent() -> None:
    good = Good()
    good.others.append(fault("kill", 8.0, 9.5, 1))
    assert "nothing was acknowledged after the last fault, 9.5 s" in found(good)["silent"][0]
    good.sends.append(Send(client="b", topic=TOPIC, partition=0, value="b:0", at=9.7))
    assert "silent" in found(good)
    good.sends[-1] = send(9, at=9.7)
    assert "silent" not in found(good)


@pytest.mark.parametrize("outcome", ["fail", "unknown"])
def test_without_any_fault_every_record_has_to_be_stored(outcome: str) -> None:
    good = Good()
    good.sends.append(send(10, outcome=outcome, offset=-1, error="NOT_ENOUGH_REPLICAS"))
    assert found(good) == {"refused": ["refused at t-0: a:10: NOT_ENOUGH_REPLICAS"]}


@pytest.mark.parametrize(("name", "is_told"), [("drain", True), ("join", True), ("kill", False)])
def test_nothing_may_be_refused_while_partitions_are_moved(name: str, is_told: bool) -> None:
    good = Good()
    good.sends.append(send(10, outcome="unknown", offset=-1, error="TOPIC_AUTHORIZATION_FAILED"))
    good.others.append(fault(name, 1.0, 2.0, 0, shares={"0": 1}, left=0))
    assert ("refused" in found(good)) is is_told


def test_a_node_that_was_asked_by_itself_may_refuse() -> None:
    good = Good()
    good.sends.append(send(10, outcome="fail", offset=-1, node=1, error="NOT_LEADER_OR_FOLLOWER"))
    assert found(good) == {}


def test_a_client_that_had_to_give_up_is_told() -> None:
    good = Good()
    good.others.append(Trouble(client="a", at=3.0, error="UNKNOWN_PRODUCER_ID", fatal=True))
    good.others.append(Trouble(client="a", at=3.0, error="a connection broke"))
    assert found(good) == {"fatal": ["fatal at a: UNKNOWN_PRODUCER_ID at 3.0 s"]}


def test_every_checker_is_told_from_the_others_by_its_name() -> None:
    assert len(CHECKERS) == len(set(CHECKERS.values())) == 14
