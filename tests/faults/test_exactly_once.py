from pathlib import Path

import sapwood
from tests.faults import exactly_once
from tests.faults.exactly_once import KILLS, Overseer, judged
from tests.helpers import eventually
from tests.judges.transactors import ConfluentTransactor


def test_read_process_write_has_each_effect_once_while_workers_and_nodes_are_killed(
    tmp_path: Path,
) -> None:
    outcome = exactly_once.run(tmp_path, seconds=12, seed=3)
    assert outcome.complaints == [], str(outcome)
    assert outcome.records >= 600
    assert outcome.kills.keys() >= set(KILLS)


def test_what_is_missing_doubled_or_out_of_order_in_an_output_is_found() -> None:
    seen = {0: [0, 1, 2], 1: [0, 2], 2: [0, 1, 1], 3: [1, 0]}
    assert judged({0: 3, 1: 3, 2: 2, 3: 2}, seen) == [
        "partition 1: 1 missing, 0 doubled",
        "partition 2: 0 missing, 1 doubled",
        "partition 3: 0 missing, 0 doubled, out of order",
    ]


def test_a_transaction_that_is_open_for_too_long_is_found() -> None:
    with sapwood.Cluster(topics={"t": 1}) as cluster:
        overseer = Overseer(cluster.bootstrap, cluster.nodes, limit_s=0.5)
        overseer.start()
        try:
            transactor = ConfluentTransactor(cluster.bootstrap, "hangs")
            transactor.begin()
            transactor.send("t", b"x", partition=0)
            eventually(lambda: overseer.hanging)
        finally:
            overseer.end()
    assert overseer.complaints == ["hangs was open for more than 0.5 s"]


def test_to_have_seen_no_transaction_at_all_is_no_proof() -> None:
    assert Overseer("127.0.0.1:1", []).complaints == ["no transaction was ever seen to be open"]
