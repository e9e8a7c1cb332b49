"""The measurement of put and get, end to end, with Sapwood alone and for a short time."""

import json
from pathlib import Path

import pytest

from bench.messages import Contender, Done, check, table
from bench.peers import LoadFailed
from tests.bench.test_bench import measure, processes_of


def test_put_and_get_are_measured_and_nothing_is_left_running(tmp_path: Path) -> None:
    output = tmp_path / "messages.json"
    flags = ["--quick", "--peers", "sapwood", "--output", str(output)]
    measure(tmp_path, "bench.messages", *flags)
    (found,) = json.loads(output.read_text())["sapwood:1"]
    assert found["puts/s, 8 publishers"] > 0
    assert found["gets/s, 4 subscribers together"] > 0
    assert found["put → get at 50/s, p99 (ms)"] > 0
    assert processes_of(tmp_path) == []


@pytest.mark.parametrize(
    ("got", "verdict"),
    [([b"a"], "lost 1, doubled 0"), ([b"a", b"b", b"b"], "lost 0, doubled 1")],
)
def test_a_message_that_is_lost_or_got_twice_ends_the_run(got: list[bytes], verdict: str) -> None:
    put = Done(2, 1.0, [], [b"a", b"b"])
    check([put], [put])
    with pytest.raises(LoadFailed, match=verdict):
        check([put], [put, Done(len(got), 1.0, [], got)])


def test_a_ratio_compares_brokers_on_as_many_nodes() -> None:
    medians = {
        Contender("sapwood", 1): {"puts/s": 500.0},
        Contender("sapwood", 3): {"puts/s": 300.0},
        Contender("nats", 3): {"puts/s": 600.0},
        Contender("redis", 1): {"puts/s": 1000.0},
    }
    assert list(table(medians))[-1] == "| puts/s | 500 | 300 | 600 (0.50×) | 1,000 (0.50×) |"
