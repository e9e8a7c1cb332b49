"""What must hold after every event, whatever happened; and what must hold in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sapwood.tree.edge import Phase
from sapwood.tree.words import Attach

if TYPE_CHECKING:
    from sim.tree.forest import EdgeNode, Forest, Node


class Broken(Exception):
    """An invariant doesn't hold."""


class Invariants:
    def __init__(self, forest: Forest) -> None:
        self._forest = forest

    def taken_in(self, father: EdgeNode, attach: Attach) -> None:
        if father.edge.phase is not Phase.ATTACHED:
            raise Broken(
                f"{father.node_id} takes {attach.child.node_id} in, and is {father.edge.phase.name}"
            )

    def check(self, node: Node) -> None:
        """Only who has just acted can have made a loop, or come too near to those below."""
        edges = self._forest.edges
        if node.node_id in edges:
            self.chain(edges[node.node_id])
            self.is_nearer(edges[node.node_id])
            for child in node.rules().children:
                self.is_nearer(edges[child.node_id])

    def is_nearer(self, edge: EdgeNode) -> None:
        """Whom it hangs from has told others of a better way: from this no loop can be made."""
        if not edge.up or edge.edge.parent is None or edge.hung_from is None:
            return
        node_id, life = edge.hung_from
        above = self._forest.edges.get(node_id)
        if above is not None and above.life == life:
            mine, its = edge.edge.feasible, above.edge.feasible
            if not its.is_better_than(mine):
                raise Broken(f"{edge.node_id}, {mine}, hangs from {node_id}, which is at {its}")

    def chain(self, edge: EdgeNode) -> list[int]:
        """Those above it as they are now, as far as they go."""
        seen = [edge.node_id]
        below = edge
        while below.up and below.edge.parent is not None and below.hung_from is not None:
            node_id, life = below.hung_from
            if node_id in seen:
                raise Broken(f"a loop: {' -> '.join(map(str, [*seen, node_id]))}")
            seen.append(node_id)
            above = self._forest.edges.get(node_id)
            if above is None or above.life != life:
                break  # a core node; or it was another life, which has ended
            below = above
        return seen[1:]

    # -- in the end --------------------------------------------------------------------------

    def unsettled(self) -> str:
        """What isn't yet as it should be."""
        forest = self._forest
        for edge in forest.edges.values():
            if edge.is_gone:
                if (ghost := forest.image.edges.known.get(edge.node_id)) and ghost.confirmed:
                    return f"the supervisor says {ghost}, and that one is dead"
                continue
            rules = edge.edge
            above = self.chain(edge)
            if rules.phase is not Phase.ATTACHED or not above or above[-1] not in forest.cores:
                return f"{edge.node_id} is {rules.phase.name} below {above}"
            if [it.node_id for it in rules.ancestors] != above:
                known = [it.node_id for it in rules.ancestors]
                return f"{edge.node_id} takes {known} for its ancestors, and has {above}"
            father = forest.node(above[0])
            if father is None or rules.me not in father.rules().children:
                return f"{edge.node_id} is no child of {above[0]}"
            told = forest.image.edges.known.get(edge.node_id)
            if told is None or not told.confirmed or told.father != above[0]:
                return f"the supervisor says {told} of {edge.node_id}, which is below {above}"
        return ""
