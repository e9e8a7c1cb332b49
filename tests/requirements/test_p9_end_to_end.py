"""P9: a line that is typed at one edge passes Spark and is heard, once, at another, though edges
die while it is on its way."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

import sapwood
from sapwood.client import Client, KafkaClient
from sapwood.client.config import READ_COMMITTED
from tests.gateway.rest import Gateway
from tests.gateway.talk import OK, TcpTalk
from tests.requirements.trees import Tree
from tests.spark.pipeline import running

pytestmark = pytest.mark.timeout(900)

# With its headers a message keeps its id and its sender.
SQL = """
CREATE TEMPORARY VIEW typed USING sapwood OPTIONS (subscribe 'typed', includeHeaders 'true');
CREATE TEMPORARY VIEW loud USING sapwood OPTIONS (topic 'loud');
INSERT INTO loud SELECT key, upper(cast(value AS string)) AS value, headers FROM typed;
"""
HEARD_S = 120.0


def test_p9_a_line_typed_at_one_edge_is_heard_once_at_another_and_by_get_while_edges_are_killed(
    tmp_path: Path,
) -> None:
    file = tmp_path / "shout.sql"
    file.write_text(SQL)
    topics = {"typed": 1, "loud": 1}
    with sapwood.Cluster(nodes=3, topics=topics) as cluster, ExitStack() as stack:
        pipeline = stack.enter_context(
            running(str(file), "--continuous", directory=tmp_path, bootstrap=cluster.bootstrap)
        )
        tree = Tree(cluster)
        tree.grow(west="0", relay="1", east="relay", twin="relay")
        west, east = (stack.enter_context(Gateway(tree.address(name))) for name in ("west", "east"))
        typist = stack.enter_context(TcpTalk(west.ready["lines"]))
        listener = stack.enter_context(TcpTalk(east.ready["lines"]))
        subscriber = stack.enter_context(Client(tree.address("twin"), "bob"))
        subscriber.subscribe("loud")
        assert listener.say("SUBSCRIBE", topic="loud") == OK
        assert typist.say("USER", name="ann") == OK
        listener.socket.settimeout(HEARD_S)

        events: list[Callable[[], None]] = [
            lambda: pipeline.reach("shout", 1),  # all are well, and Spark has begun
            lambda: tree.kill("relay"),
            lambda: tree.kill("east"),
            lambda: tree.kill("west"),
        ]
        for number, happens in enumerate(events):
            line = {"topic": "typed", "message": f"line {number}", "id": f"id-{number}"}
            assert typist.say("SEND", **line) == OK
            happens()
            heard = listener.message()
            assert (heard["topic"], heard["user"]) == ("loud", "ann")
            assert (heard["id"], heard["message"]) == (f"id-{number}", f"LINE {number}")
            got = subscriber.get("loud", timeout=HEARD_S)
            assert got is not None
            assert (got.id, got.sender, got.text) == (f"id-{number}", "ann", f"LINE {number}")
        assert subscriber.get("loud", timeout=1) is None
        assert listener.say("UNSUBSCRIBE", topic="loud") == OK
        assert listener.messages == [], "nothing came twice"
        with KafkaClient(cluster.bootstrap, isolation_level=READ_COMMITTED) as client:
            stored = [it.value for it in client.consume({("loud", 0): 0}, stop_at="end")]
        assert stored == [b"LINE %d" % number for number in range(len(events))]
