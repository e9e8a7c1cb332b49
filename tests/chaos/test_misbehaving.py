"""The judge of misbehaving clients, on lives made up for the purpose."""

from pathlib import Path
from typing import Any

import msgspec

from sapwood.chaos.notes import Note, Notebook, What, read
from sapwood.chaos.verdict import Record, Verdict, judge, merged

TOPIC = "t"


def log(*numbers: int, publisher: str = "p") -> list[Record]:
    """One partition, with the messages of one publisher under these numbers."""
    return [Record(TOPIC, 0, offset, publisher, each) for offset, each in enumerate(numbers)]


def puts(*numbers: int) -> list[Note]:
    notes = [note("began")]
    for each in numbers:
        notes += [note("puts", number=each), note("stored", number=each)]
    return [*notes, note("ended")]


def note(what: What, **fields: Any) -> Note:
    return Note(what, topic=TOPIC, **fields)


def got(*numbers: int) -> list[Note]:
    """From a partition in which a message's number is its offset."""
    notes = []
    for each in numbers:
        place = {"partition": 0, "offset": each, "publisher": "p", "number": each}
        notes += [note("asks"), note("got", **place)]
    return notes


def acknowledged(*numbers: int) -> list[Note]:
    return [note("acknowledged", partition=0, offset=each) for each in numbers]


BEGAN, ASKS, ENDED = note("began"), note("asks"), note("ended")
SUBSCRIBED = note("subscribed", positions={0: 0})


def verdict(*life: Note, count: int = 5, acknowledging: bool = False) -> Verdict:
    """On a subscriber's life, beside a topic with `count` messages that are all in order."""
    return judge(
        log(*range(count)),
        {"p": puts(*range(count))},
        {"s": life},
        ["s"] if acknowledging else [],
    )


def test_a_life_in_good_order_is_clean() -> None:
    found = verdict(BEGAN, SUBSCRIBED, *got(0, 1, 2, 3, 4), ENDED)
    assert found.is_clean
    assert (found.stored, found.got, found.crashes, found.in_the_window) == (5, 5, 0, 0)


def test_a_message_that_was_stored_and_is_not_there_is_lost() -> None:
    found = judge(log(0, 2), {"p": puts(0, 1, 2)}, {}, [])
    assert found.lost == ["t: p 1 was stored, and isn't"]


def test_a_message_that_is_there_twice_is_doubled_and_one_that_went_ahead_out_of_order() -> None:
    assert len(judge(log(0, 1, 1), {"p": puts(0, 1)}, {}, []).doubled) == 1
    assert len(judge(log(1, 0), {"p": puts(0, 1)}, {}, []).out_of_order) == 1
    scattered = [Record(TOPIC, 0, 0, "p", 0), Record(TOPIC, 1, 0, "p", 1)]
    assert len(judge(scattered, {"p": puts(0, 1)}, {}, []).out_of_order) == 1


def test_a_message_that_a_subscriber_never_got_is_lost() -> None:
    assert len(verdict(BEGAN, SUBSCRIBED, *got(0, 1, 3, 4), ENDED).lost) == 1
    assert len(verdict(BEGAN, SUBSCRIBED, *got(0, 1, 2, 3), ENDED).lost) == 1


def test_a_message_got_twice_is_doubled() -> None:
    assert len(verdict(BEGAN, SUBSCRIBED, *got(0, 1, 2, 1, 3, 4), ENDED).doubled) == 1


def test_messages_got_out_of_order_are_told() -> None:
    assert len(verdict(BEGAN, SUBSCRIBED, *got(0, 2, 1, 3, 4), ENDED).out_of_order) == 1


def test_a_crash_may_take_the_one_message_that_was_asked_for() -> None:
    found = verdict(BEGAN, SUBSCRIBED, *got(0, 1), ASKS, BEGAN, *got(3, 4), ENDED)
    assert found.is_clean
    assert (found.crashes, found.in_the_window) == (1, 1)
    last = verdict(BEGAN, SUBSCRIBED, *got(0, 1, 2, 3), ASKS, BEGAN, ENDED)
    assert (last.is_clean, last.in_the_window) == (True, 1)


def test_a_crash_excuses_no_second_message() -> None:
    found = verdict(BEGAN, SUBSCRIBED, *got(0, 1), ASKS, BEGAN, *got(4), ENDED)
    assert (len(found.lost), found.in_the_window) == (1, 1)


def test_a_crash_excuses_no_message_of_another_time() -> None:
    found = verdict(BEGAN, SUBSCRIBED, *got(0, 2, 3), ASKS, BEGAN, *got(4), ENDED)
    assert (len(found.lost), found.in_the_window) == (1, 0)


def test_a_crash_while_nothing_was_asked_for_excuses_nothing() -> None:
    lives = (
        [*got(0, 1), BEGAN, *got(3, 4)],
        [*got(0, 1), ASKS, note("nothing"), BEGAN, *got(3, 4)],
    )
    for life in lives:
        assert len(verdict(BEGAN, SUBSCRIBED, *life, ENDED).lost) == 1


def test_every_crash_excuses_the_message_that_no_other_can() -> None:
    life = [*got(0), ASKS, BEGAN, *got(2), ASKS, BEGAN, *got(4)]
    found = verdict(BEGAN, SUBSCRIBED, *life, ENDED)
    assert (found.is_clean, found.in_the_window) == (True, 2)


def test_who_acknowledges_by_himself_may_get_again_what_he_has_not() -> None:
    life = [*got(0, 1), *acknowledged(1), *got(0, 2, 3, 4)]
    found = verdict(BEGAN, SUBSCRIBED, *life, ENDED, acknowledging=True)
    assert (found.is_clean, found.again) == (True, 1)
    life = [*got(0, 1), *acknowledged(1), *got(1, 2, 3, 4)]
    assert len(verdict(BEGAN, SUBSCRIBED, *life, ENDED, acknowledging=True).doubled) == 1


def test_who_acknowledges_by_himself_has_no_window() -> None:
    life = [*got(0, 1), ASKS, BEGAN, *got(3, 4)]
    found = verdict(BEGAN, SUBSCRIBED, *life, ENDED, acknowledging=True)
    assert (len(found.lost), found.in_the_window) == (1, 0)


def test_a_subscription_owes_what_lies_between_its_beginning_and_its_end() -> None:
    later = note("subscribed", positions={0: 2})
    assert verdict(BEGAN, later, *got(2, 3, 4), ENDED).is_clean
    over = note("unsubscribes")
    assert verdict(BEGAN, SUBSCRIBED, *got(0, 1), over, ENDED).is_clean
    assert len(verdict(BEGAN, SUBSCRIBED, *got(0, 2), over, ENDED).lost) == 1
    anew = [*got(0, 1), over, SUBSCRIBED, *got(0, 1, 2, 3, 4)]
    assert verdict(BEGAN, SUBSCRIBED, *anew, ENDED).is_clean


def test_a_subscription_that_begins_behind_a_message_put_after_it_has_lost_it() -> None:
    later = Note("subscribed", at_s=1.0, topic=TOPIC, positions={0: 1})
    publisher = [BEGAN, Note("puts", at_s=2.0, topic=TOPIC, number=0)]
    found = judge(log(0), {"p": publisher}, {"s": [BEGAN, later, ENDED]}, [])
    assert len(found.lost) == 1


def test_who_never_came_to_the_end_is_told_apart_from_who_lost() -> None:
    found = verdict(BEGAN, SUBSCRIBED, *got(0, 1, 2))
    assert (found.lost, len(found.undelivered), found.is_clean) == ([], 2, False)


def at(at_s: float, *notes: Note) -> list[Note]:
    """The same notes, one a hundredth of a second from then on."""
    return [
        msgspec.structs.replace(each, at_s=at_s + index / 100) for index, each in enumerate(notes)
    ]


def shared(one: list[Note], other: list[Note], *, acknowledging: bool = False) -> Verdict:
    """On a subscriber with two processes under one id."""
    return verdict(*merged(one, other), acknowledging=acknowledging)


FIRST, SECOND = at(0, BEGAN, SUBSCRIBED, *got(0, 1)), at(1, BEGAN, SUBSCRIBED)


def test_two_processes_of_one_subscriber_may_share_what_there_is() -> None:
    found = shared([*FIRST, *at(3, *got(4), ENDED)], [*SECOND, *at(2, *got(2, 3)), *at(4, ENDED)])
    assert found.is_clean
    assert (found.got, found.crashes) == (5, 0)


def test_what_both_processes_of_one_subscriber_get_is_doubled() -> None:
    second = [*SECOND, *at(2, *got(1, 2, 3, 4), ENDED)]
    assert len(shared([*FIRST, *at(3, ENDED)], second).doubled) == 1
    manual = [*at(0, BEGAN, SUBSCRIBED, *got(0, 1), *acknowledged(0, 1)), *at(3, ENDED)]
    assert len(shared(manual, second, acknowledging=True).doubled) == 1
    forgetful = [*at(0, BEGAN, SUBSCRIBED, *got(0, 1), *acknowledged(0)), *at(3, ENDED)]
    found = shared(forgetful, second, acknowledging=True)
    assert (found.is_clean, found.again) == (True, 1)


def test_what_neither_process_of_one_subscriber_gets_is_lost() -> None:
    found = shared([*FIRST, *at(3, ENDED)], [*SECOND, *at(2, *got(3, 4), ENDED)])
    assert len(found.lost) == 1


def test_they_share_an_order_too() -> None:
    found = shared([*FIRST, *at(3, *got(2), ENDED)], [*SECOND, *at(2, *got(3, 4), ENDED)])
    assert len(found.out_of_order) == 1


def test_a_crash_of_one_process_takes_one_message_while_the_other_gets_on() -> None:
    first = [*FIRST, *at(0.5, ASKS), *at(4, BEGAN), *at(5, ENDED)]
    found = shared(first, [*SECOND, *at(2, *got(3, 4)), *at(5, ENDED)])
    assert (found.is_clean, found.in_the_window, found.crashes) == (True, 1, 1)
    second = [*SECOND, *at(2, *got(4)), *at(5, ENDED)]
    assert len(shared(first, second).lost) == 1
    too_late = [*FIRST, *at(2.5, ASKS), *at(4, BEGAN), *at(5, ENDED)]
    assert len(shared(too_late, [*SECOND, *at(2, *got(3, 4)), *at(5, ENDED)]).lost) == 1


def test_a_subscriber_has_come_to_the_end_when_both_of_its_processes_have() -> None:
    second = [*SECOND, *at(2, *got(2, 3))]
    assert len(shared([*FIRST, *at(3, ENDED)], second).undelivered) == 1


def test_a_torn_line_harms_no_other(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    Notebook(path).write("began")
    with path.open("ab") as file:
        file.write(b'{"what": "go')
    again = Notebook(path)
    assert [each.what for each in again.earlier] == ["began"]
    again.write("got", topic=TOPIC, offset=7)
    assert [(each.what, each.offset) for each in read(path)] == [("began", -1), ("got", 7)]
