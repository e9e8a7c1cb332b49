"""The tree as people and programs see it."""

from sapwood.metadata import records as r
from sapwood.tree.drawing import document, drawn
from tests.metadata.images import image_of


def test_the_tree_is_drawn_with_core_nodes_edges_and_who_is_awaited() -> None:
    image = image_of(
        3,
        r.ClusterCreated(cluster_id="oak"),
        r.NodeChanged(node_id=1, alive=False),
        r.EdgeRegistered(edge_id=10_000, host="b", port=1, ports={"rest": 8080}),
        r.EdgeConfirmed(edge_id=10_000, host="b", port=1, father=0),
        r.EdgeConfirmed(edge_id=10_001, host="c", port=2, father=0),
        r.EdgeConfirmed(edge_id=10_002, host="d", port=3, father=10_000),
        r.EdgeRegistered(edge_id=10_003, host="e", port=4, father=10_002),
    )
    tree = document(image, lambda it: image.nodes[it].alive, {10_002: 7}, controller=2)
    assert drawn(tree) == (
        "cluster oak\n"
        "├── core 0 at h:9092\n"
        "│   ├── edge 10000 at b:1\n"
        "│   │   └── edge 10002 at d:3, 7 clients\n"
        "│   └── edge 10001 at c:2\n"
        "└── core 2 at h:9094, controller\n"
        "(pending: edge 10003 at e:4, sent to 10002)\n"
    )
    assert tree["kind"] == "cluster"
    first = tree["children"][0]["children"][0]
    assert (first["state"], first["father"], first["ports"]) == ("CONFIRMED", 0, {"rest": 8080})
    assert tree["pending"][0]["state"] == "PENDING"
