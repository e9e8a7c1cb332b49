"""What the numbers are turned into."""

from pathlib import Path

from rich.console import Console

from bench.goals import verdicts
from bench.report import Results, describe, markdown, print_tables, write
from bench.work import Row


def results() -> Results:
    found = Results(titles={"sapwood": "Sapwood", "kafka": "Kafka"}, about={})
    produce = Row("produce", synced=True, size=100, partitions=12)
    for peer, values in {"sapwood": [90.0, 300.0, 200.0], "kafka": [100.0, 50.0, 400.0]}.items():
        for value in values:
            found.record(peer, produce, value)
    found.record("sapwood", Row("memory", synced=True), 50.0)
    found.record("kafka", Row("memory", synced=True), 500.0)
    return found


def test_a_ratio_is_sapwoods_median_over_the_peers() -> None:
    assert results().ratio("kafka", Row("produce", True, 100, 12)) == 2.0


def test_a_row_that_only_one_peer_has_gets_no_ratio() -> None:
    found = results()
    row = Row("produce", synced=True, size=100, partitions=60, keyed=True)
    found.record("sapwood", row, 1.0)
    assert found.ratio("kafka", row) is None
    assert "| synced, 100 B, 60 partitions, keyed | 1/s, 0 MB/s | – |" in markdown(found)


def test_synced_rows_come_first_then_small_messages_then_few_partitions() -> None:
    found = Results(titles={"sapwood": "Sapwood"}, about={})
    for row in (Row("p99", False, 100, 1), Row("p99", True, 1000, 1), Row("p99", True, 100, 12)):
        found.record("sapwood", row, 1.0)
    assert [describe(row) for row in found.rows("p99")] == [
        "synced, 100 B, 12 partitions",
        "synced, 1 KB, 1 partition",
        "OS-buffered, 100 B, 1 partition",
    ]


def test_more_is_better_for_rates_and_less_for_memory() -> None:
    console = Console(record=True, width=120, color_system="truecolor", force_terminal=True)
    found = results()
    found.record("sapwood", Row("p99", True, 100, 12), 9.0)
    found.record("kafka", Row("p99", True, 100, 12), 3.0)
    with console.capture() as shown:
        print_tables(found, console)
    green, red = "\x1b[1;32m", "\x1b[1;31m"
    for ratio in (f"{green}2.00×", f"{green}0.10×", f"{red}3.00×"):
        assert ratio in shown.get().replace("m  ", "m")


def test_every_kind_of_output_is_written(tmp_path: Path) -> None:
    for path in write(results(), tmp_path):
        assert path.stat().st_size > 0


def test_a_goal_tells_the_rows_that_miss_it() -> None:
    found = results()
    found.record("sapwood", Row("consume", True, 100, 12), 50.0)
    found.record("kafka", Row("consume", True, 100, 12), 100.0)
    assert verdicts(found) == [
        "Produce and Consume: ≥ 1 × Kafka: in 1 of 2",
        "  Consume, synced, 100 B, 12 partitions: 0.50 × Kafka",
        "Memory, peak: ≤ 0.25 × Kafka: in 1 of 1",
    ]


def test_rows_of_a_cluster_come_last_and_have_goals_of_their_own() -> None:
    found = results()
    for synced, theirs in ((True, 12.0), (False, 8.0)):
        row = Row("failover", synced, nodes=3)
        found.record("sapwood", row, 3.0)
        found.record("kafka", row, theirs)
    found.record("sapwood", Row("memory", True, nodes=3), 100.0)
    found.record("kafka", Row("memory", True, nodes=3), 1000.0)
    assert [describe(row) for row in found.rows("memory")] == ["synced", "3 nodes, synced"]
    # Against Kafka at its defaults, which doesn't sync: 3 to 8, not 3 to 12.
    assert verdicts(found)[2:] == [
        "3 nodes: Longest gap in acknowledgements, leader killed, synced: "
        "≤ 0.25 × Kafka at its defaults: in 0 of 1",
        "  Longest gap in acknowledgements, leader killed, 3 nodes, synced: 0.38 × Kafka",
        "3 nodes: Memory, peak: ≤ 0.25 × Kafka: in 1 of 1",
    ]
