import threading
from pathlib import Path

import pytest

from chaos.history import (
    Fault,
    History,
    Line,
    Read,
    Recorder,
    Send,
    from_the_wire,
    lines,
    on_the_wire,
    runs,
)
from tests.chaos.histories import read, send


def a_recorder(directory: Path) -> Recorder:
    return Recorder(directory, seed=7, nodes=3, replicas=3, about={"topics": {"t": 2}})


def test_what_was_recorded_is_read_again(tmp_path: Path) -> None:
    written: list[Line] = [
        send(1, node=2),
        send(2, outcome="unknown", done=None, offset=-1),
        read("reader", 5, "a:1", "b:7", final=True),
        Fault(name="kill", nodes=[1], at=1.5, done=2.5, about={"aim": "leader"}),
    ]
    with a_recorder(tmp_path) as recorder:
        for line in written:
            recorder.add(line)
    start, *rest = lines(recorder.path)
    assert rest == written
    history = History.load(tmp_path)
    assert history.start == start
    assert (history.start.seed, history.start.about) == (7, {"topics": {"t": 2}})
    assert (len(history.sends), len(history.reads), len(history.faults)) == (2, 1, 1)


def test_a_line_says_what_it_is_and_leaves_out_what_goes_without_saying(tmp_path: Path) -> None:
    with a_recorder(tmp_path) as recorder:
        recorder.add(Send(client="a", topic="t", partition=0, value="a:1", at=1.5))
    last = recorder.path.read_text().splitlines()[-1]
    assert last == '{"op":"send","client":"a","topic":"t","partition":0,"value":"a:1","at":1.5}'


def test_many_threads_record_at_once(tmp_path: Path) -> None:
    with a_recorder(tmp_path) as recorder:

        def record(name: str) -> None:
            for number in range(2000):
                recorder.add(send(number, name))

        threads = [threading.Thread(target=record, args=(f"p{i}",)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert recorder.acknowledged == 8000
    history = History.load(tmp_path)
    for name in ("p0", "p1", "p2", "p3"):
        numbers = [it.value for it in history.sends if it.client == name]
        assert numbers == [f"{name}:{number}" for number in range(2000)]


def test_consecutive_offsets_share_a_line() -> None:
    records = [(3, "a"), (4, "b"), (6, "c"), (7, "d"), (9, "e")]
    assert list(runs(records)) == [(3, ["a", "b"]), (6, ["c", "d"]), (9, ["e"])]
    assert list(runs([])) == []


@pytest.mark.parametrize("size", [1, 8, 9, 100, 10_001])
def test_a_record_names_its_producer_and_number_whatever_its_size(size: int) -> None:
    content = on_the_wire("p1:123", size)
    assert len(content) == max(size, len("p1:123|"))
    assert from_the_wire(content) == "p1:123"


@pytest.mark.parametrize("place", [0, 3, 6, 7, 50, 99])
def test_a_flipped_bit_anywhere_in_a_record_is_seen(place: int) -> None:
    content = bytearray(on_the_wire("p1:123", 100))
    content[place] ^= 4
    assert from_the_wire(bytes(content)).startswith("damaged:")


def test_a_record_without_content_is_damaged() -> None:
    assert from_the_wire(None) == "damaged:null"
    assert from_the_wire(b"") == "damaged:00000000:b''"


def test_reads_without_values_keep_their_place(tmp_path: Path) -> None:
    empty = Read(client="r", topic="t", partition=1, offset=17, at=1.0, done=2.0, final=True)
    with a_recorder(tmp_path) as recorder:
        recorder.add(empty)
    assert History.load(tmp_path).reads == [empty]
