"""The edges of the tree as the metadata log has them, and how they come and go.

Between an edge and its father there is a relation, which the father confirmed. An edge is erased
when its last relation is gone: that to its father, and those to its children.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sapwood.metadata import records as r

NOBODY = -1
FIRST_EDGE_ID = 10_000
"""Below it are the core nodes."""


@dataclass(slots=True)
class Edge:
    edge_id: int
    host: str
    port: int
    ports: dict[str, int] = field(default_factory=dict)
    """Of what else it serves, by name."""
    wish: str = ""
    """Whom it would like to hang from."""
    father: int = NOBODY
    """Offered, and once confirmed, had."""
    confirmed: bool = False
    since: tuple[int, int] = (0, 0)
    """Which of its attachments the father has told of; (0, 0) if it only gave its word."""

    @property
    def is_linked(self) -> bool:
        return self.since != (0, 0)


@dataclass(slots=True)
class Edges:
    """By id. Changed by `apply` alone."""

    known: dict[int, Edge] = field(default_factory=dict)
    next_id: int = FIRST_EDGE_ID
    """No id is given twice: whoever wakes up with an old one must not be taken for another."""

    def children(self, node_id: int) -> list[Edge]:
        """Confirmed ones, of a core node or an edge."""
        return [it for it in self.known.values() if it.confirmed and it.father == node_id]

    def apply(self, record: r.EdgeRecord) -> None:
        edge = self.known.get(record.edge_id)
        self.next_id = max(self.next_id, record.edge_id + 1)
        before = NOBODY if edge is None else edge.father
        match record:
            case r.EdgeRegistered():
                self.known[record.edge_id] = Edge(
                    record.edge_id,
                    record.host,
                    record.port,
                    dict(record.ports),
                    record.wish,
                    record.father,
                )
            case r.EdgeConfirmed():
                if edge is None:
                    edge = Edge(record.edge_id, record.host, record.port)
                    self.known[record.edge_id] = edge
                edge.host, edge.port = record.host, record.port
                edge.father, edge.confirmed, edge.since = record.father, True, record.since
            case r.EdgeDetached():
                if edge is not None:
                    edge.father, edge.confirmed, edge.since = NOBODY, False, (0, 0)
                    self._erase_without_relation(record.edge_id)
            case r.EdgeRemoved():
                self.known.pop(record.edge_id, None)
        self._erase_without_relation(before)

    def records(self) -> Iterator[r.Record]:
        """Records that, applied to none, give these."""
        if self.next_id > FIRST_EDGE_ID:
            yield r.EdgeRemoved(edge_id=self.next_id - 1)
        for it in self.known.values():
            yield r.EdgeRegistered(
                edge_id=it.edge_id,
                host=it.host,
                port=it.port,
                ports=dict(it.ports),
                wish=it.wish,
                father=it.father,
            )
        for it in self.known.values():
            if it.confirmed:
                yield r.EdgeConfirmed(
                    edge_id=it.edge_id,
                    host=it.host,
                    port=it.port,
                    father=it.father,
                    since=it.since,
                )

    def _erase_without_relation(self, node_id: int) -> None:
        edge = self.known.get(node_id)
        if edge is not None and edge.father == NOBODY and not self.children(node_id):
            del self.known[node_id]
