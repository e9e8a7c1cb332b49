"""B3: every node answers reads, passes writes on to whoever can do them, and skips the dead."""

import sapwood
from sapwood.wire.errors import ErrorCode
from tests.gateway.rest import Gateway, ok
from tests.helpers import eventually
from tests.requirements.manager import manager


def test_b3_a_copy_passes_writes_on_and_skips_a_dead_primary() -> None:
    with sapwood.Cluster(nodes=3) as cluster:
        primary = cluster.status().controller
        copies = [index for index in cluster.nodes if index != primary]
        for index in copies:
            with manager(cluster, index) as copy:
                assert copy.create_topic(f"b3-at-{index}") is ErrorCode.NONE
        cluster.kill(primary)
        # The request waits for the new primary: the client need not know that there was another.
        for index in copies:
            with manager(cluster, index) as copy:
                assert copy.create_topic(f"b3-later-{index}") is ErrorCode.NONE
                assert copy.replicas(f"b3-at-{index}") is not None
        assert cluster.status(copies[0]).controller in copies
        cluster.restart(primary)
        with manager(cluster, primary) as returned:
            for index in copies:
                eventually(lambda topic=f"b3-later-{index}": returned.replicas(topic) is not None)  # type: ignore[misc]


def test_b3_over_rest_a_copy_answers_forwards_and_goes_on_without_the_primary() -> None:
    with sapwood.Cluster(nodes=3) as cluster:
        primary = cluster.status().controller
        copy = next(index for index in cluster.nodes if index != primary)
        with Gateway(cluster.address(copy), node_id=copy) as gateway:
            assert ok(gateway.get("/status"))["role"] == "manager copy"
            ok(gateway.post("/topics", topic="b3-before"), 201)
            cluster.kill(primary)
            ok(gateway.get("/topics", topic="b3-before"))
            body = {"topic": "b3-after"}
            eventually(lambda: gateway.post("/topics", **body).status_code in (201, 409), 30)
            ok(gateway.get("/topics", topic="b3-after"))
            assert ok(gateway.get("/status"))["controller"] != primary
