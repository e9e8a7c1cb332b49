"""D5: subscriptions and positions are safe before anybody is told so, not every few seconds."""

from pathlib import Path

import sapwood


def test_d5_everything_killed_at_once_right_after_an_answer_forgets_nothing(
    tmp_path: Path,
) -> None:
    with sapwood.Cluster(nodes=3, data_dir=tmp_path / "data") as cluster:
        for round_number in range(3):
            with sapwood.Client(cluster.bootstrap, id="alice") as alice:
                alice.subscribe("d5", start="earliest")
                stored = alice.put("d5", f"{round_number}")
                message = alice.get("d5", 60)
                assert message is not None
                assert (message.text, message.offset) == (f"{round_number}", stored.offset)
                assert stored.offset == round_number
                for index in cluster.nodes:
                    cluster.kill(index)
                for index in cluster.nodes:
                    cluster.restart(index, wait=False)
                cluster.wait_healthy()
                assert alice.get("d5", 1) is None
        with sapwood.Client(cluster.bootstrap, id="alice") as alice:
            assert alice.get("d5", 1) is None
            assert {each.lag for each in alice.pending("d5")} == {0}
