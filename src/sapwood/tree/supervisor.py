"""The supervisor's rules: commands in, records out. It is a part of the active controller.

As everywhere in the metadata: nothing is changed here, and `KafkaError` says what the asker is to
see. By word: a node registers and is offered a father, who confirms it; neighbours report each
other down, relation by relation. By link: every core node tells who hangs below it, and what the
metadata say follows that. So a wrong word about a node that lives is put right at the next turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from sapwood.metadata import records as r
from sapwood.metadata.edges import FIRST_EDGE_ID, NOBODY, Edge
from sapwood.metadata.image import Image
from sapwood.tree.words import Claim, Place
from sapwood.wire.errors import ErrorCode, KafkaError

MOST_EDGES = 1_000
"""Every node has them all in memory."""
PLACES = 8
"""Children that a node is given, unless somebody says otherwise."""
GRACE_S = 2.0
"""How long an edge that nobody tells of keeps its place: its father may be on the way itself."""
SILENCE_S = 3.0
"""After so long without a word a core node's claims don't count any more."""
PENDING_S = 300.0
LONGEST_NAME = 255

IsAlive = Callable[[int], bool]


# -- who is where ------------------------------------------------------------------------------


def place_of(image: Image, node_id: int) -> Place | None:
    if (edge := image.edges.known.get(node_id)) is not None:
        return Place(node_id, edge.host, edge.port)
    if (node := image.nodes.get(node_id)) is not None:
        return Place(node_id, *next(iter(node.listeners.values())))
    return None


def find(image: Image, name: str) -> int | None:
    """The node that is called so: by its id, or by an address of its own."""
    if name.isascii() and name.isdigit():
        number = int(name)
        return number if number in image.nodes or number in image.edges.known else None
    host, _, port = name.rpartition(":")
    for node in image.nodes.values():
        if any((host, port) == (its, str(at)) for its, at in node.listeners.values()):
            return node.node_id
    for edge in image.edges.known.values():
        if (host, port) == (edge.host, str(edge.port)):
            return edge.edge_id
    return None


def depths(image: Image, is_alive: IsAlive) -> dict[int, int]:
    """Of everybody who is in the tree: core nodes that live, and confirmed edges below them."""
    found = {node_id: 0 for node_id in sorted(image.nodes) if is_alive(node_id)}
    below: dict[int, list[int]] = {}
    for edge in image.edges.known.values():
        if edge.confirmed:
            below.setdefault(edge.father, []).append(edge.edge_id)
    waiting = list(found)
    for node_id in waiting:
        for child in below.get(node_id, ()):
            found[child] = found[node_id] + 1
            waiting.append(child)
    return found


# -- by word -----------------------------------------------------------------------------------


def register(
    image: Image,
    edge_id: int,
    host: str,
    port: int,
    wish: str = "",
    ports: Mapping[str, int] | None = None,
    *,
    is_alive: IsAlive,
    loads: Mapping[int, int],
    places: int = PLACES,
) -> tuple[int, Place, list[r.Record]]:
    """The edge's id (-1 asks for one), the father that it is offered, and what to write down.

    `places`: so many children a node gets before its own children get any.
    """
    ports = dict(ports or {})
    _check_address(host, port, ports)
    edges = image.edges
    if edge_id == NOBODY:
        known = find(image, f"{host}:{port}")
        # It asks again, because the answer was lost, or it has forgotten its id.
        edge_id = edges.next_id if known is None else known
    if edge_id in image.nodes:
        raise KafkaError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION, f"{host}:{port} is core node {edge_id}"
        )
    if not FIRST_EDGE_ID <= edge_id <= edges.next_id:
        raise KafkaError(
            ErrorCode.INVALID_REGISTRATION, f"No edge was ever given the id {edge_id}: ask with -1"
        )
    if edge_id not in edges.known and len(edges.known) >= MOST_EDGES:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"The tree has {MOST_EDGES} edges already")
    father = _father_for(image, edge_id, wish, is_alive, loads, places)
    record = r.EdgeRegistered(
        edge_id=edge_id, host=host, port=port, ports=ports, wish=wish, father=father.node_id
    )
    present = edges.known.get(edge_id)
    same = Edge(edge_id, host, port, ports, wish, father.node_id)
    return edge_id, father, [] if present == same else [record]


def _check_address(host: str, port: int, ports: Mapping[str, int]) -> None:
    numbers = [port, *ports.values()]
    if not 1 <= len(host) <= LONGEST_NAME or not all(0 < it < 65536 for it in numbers):
        raise KafkaError(
            ErrorCode.INVALID_REGISTRATION,
            f"{host[:300]!r}:{port}: a node has a host and ports from 1 to 65535",
        )
    if len(ports) > 16 or any(len(name) > LONGEST_NAME for name in ports):
        raise KafkaError(ErrorCode.INVALID_REGISTRATION, "At most 16 further ports, with names")


def _father_for(
    image: Image,
    edge_id: int,
    wish: str,
    is_alive: IsAlive,
    loads: Mapping[int, int],
    places: int,
) -> Place:
    depth = depths(image, is_alive)
    for below in _below(image, edge_id):
        depth.pop(below, None)
    taken = _taken(image, edge_id)
    wished = None
    if wish:
        wished = find(image, wish)
        if wished is None or wished == edge_id:
            raise KafkaError(
                ErrorCode.RESOURCE_NOT_FOUND,
                f"There is no node {wish[:300]!r} to be the father: GET /tree shows who is there",
            )
    if not depth:
        raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "No core node is alive")
    if wished is not None and wished in depth and taken.get(wished, 0) < places:
        chosen = wished
    else:
        free = [it for it in depth if taken.get(it, 0) < places]
        # If every place is taken, then a core node has to make some.
        chosen = min(
            free or [it for it in depth if depth[it] == 0],
            key=lambda it: (depth[it], loads.get(it, 0), taken.get(it, 0), it),
        )
    found = place_of(image, chosen)
    if found is None:
        raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"Node {chosen} has no address")
    return found


def _below(image: Image, edge_id: int) -> list[int]:
    """The edge itself, and all that hang from it by what is known."""
    found = [edge_id]
    for node_id in found:
        found += [it.edge_id for it in image.edges.children(node_id) if it.edge_id not in found]
    return found


def _taken(image: Image, edge_id: int) -> dict[int, int]:
    """Places by father, those that are only offered as well."""
    taken: dict[int, int] = {}
    for edge in image.edges.known.values():
        if edge.edge_id != edge_id:
            taken[edge.father] = taken.get(edge.father, 0) + 1
    return taken


def confirm(image: Image, father: str, child: str) -> list[r.Record]:
    """The father says that the child, which was sent to it, has come."""
    father_id, edge = _find(image, father), _find_edge(image, child)
    if edge.father != father_id:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{father[:300]!r} isn't the father that {child[:300]!r} was offered",
        )
    if edge.confirmed:
        return []
    if father_id not in image.nodes and not image.edges.known[father_id].confirmed:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{father[:300]!r} is itself not confirmed yet")
    return [_confirmed(edge, father_id)]


def _confirmed(edge: Edge, father: int) -> r.Record:
    return r.EdgeConfirmed(edge_id=edge.edge_id, host=edge.host, port=edge.port, father=father)


def report_down(image: Image, reporter: str, node: str) -> list[r.Record]:
    """A neighbour says that the node is dead: the relation between the two has ended."""
    reporter_id, node_id = _find(image, reporter), _find(image, node)
    for child, father in ((node_id, reporter_id), (reporter_id, node_id)):
        edge = image.edges.known.get(child)
        if edge is not None and edge.confirmed and edge.father == father:
            return [r.EdgeDetached(edge_id=child)]
    raise KafkaError(
        ErrorCode.INVALID_REQUEST,
        f"{reporter[:300]!r} is neither father nor child of {node[:300]!r}",
    )


def _find(image: Image, name: str) -> int:
    found = find(image, name)
    if found is None:
        raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, f"The tree has no node {name[:300]!r}")
    return found


def _find_edge(image: Image, name: str) -> Edge:
    edge = image.edges.known.get(_find(image, name))
    if edge is None:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"{name[:300]!r} is a core node, which has no father"
        )
    return edge


# -- by link -----------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class _Report:
    claims: tuple[Claim, ...]
    heard_at: float


class Supervisor:
    """What the active controller has heard of since it is that; forgotten when it isn't."""

    def __init__(self, now: float) -> None:
        self._began_at = now
        self._reports: dict[int, _Report] = {}
        self._unclaimed: dict[int, float] = {}
        """Edges that nobody tells of, and since when."""
        self._pending: dict[int, float] = {}
        self.loads: dict[int, int] = {}

    def reported(self, core: int, claims: Iterable[Claim], now: float) -> None:
        """All that hang below a core node, whenever that changes and now and then."""
        self._reports[core] = _Report(tuple(claims), now)

    def turn(self, image: Image, is_alive: IsAlive, now: float) -> list[r.Record]:
        """What there is to write down so that the metadata say what is the case."""
        for core in list(self._reports):
            if now - self._reports[core].heard_at > SILENCE_S:
                del self._reports[core]
        claims = self._newest_claims()
        self.loads = {it.child.node_id: it.load for it in claims.values()}
        return [
            *self._confirmed(image, claims),
            *self._ended(image, claims, is_alive, now),
            *self._forgotten(image, now),
        ]

    def _newest_claims(self) -> dict[int, Claim]:
        newest: dict[int, Claim] = {}
        for report in self._reports.values():
            for claim in report.claims:
                known = newest.get(claim.child.node_id)
                if known is None or claim.since > known.since:
                    newest[claim.child.node_id] = claim
        return newest

    def _confirmed(self, image: Image, claims: Mapping[int, Claim]) -> list[r.Record]:
        found: list[r.Record] = []
        edges = image.edges
        for edge_id, claim in claims.items():
            edge = edges.known.get(edge_id)
            told = (claim.child.host, claim.child.port, claim.father, True, tuple(claim.since))
            if edge is not None:
                if told == (edge.host, edge.port, edge.father, edge.confirmed, edge.since):
                    continue
                if edge.confirmed and edge.since > claim.since:
                    continue  # an older father has not noticed yet that it has gone
            elif not self._may_come(image, claim, len(found)):
                continue
            found.append(
                r.EdgeConfirmed(
                    edge_id=edge_id,
                    host=claim.child.host,
                    port=claim.child.port,
                    father=claim.father,
                    since=(claim.since.incarnation, claim.since.attachment),
                    healing_ms=claim.healing_ms,
                )
            )
        return found

    def _may_come(self, image: Image, claim: Claim, others: int) -> bool:
        """One that was erased, or forgotten, and lives: but not one that was never registered."""
        edges, (edge_id, host, port) = image.edges, claim.child
        return (
            FIRST_EDGE_ID <= edge_id < edges.next_id
            and len(edges.known) + others < MOST_EDGES
            and len(host) <= LONGEST_NAME
            and 0 < port < 65536
        )

    def _ended(
        self, image: Image, claims: Mapping[int, Claim], is_alive: IsAlive, now: float
    ) -> list[r.Record]:
        found: list[r.Record] = []
        unclaimed: dict[int, float] = {}
        for edge in image.edges.known.values():
            if not edge.confirmed or edge.edge_id in claims:
                continue
            if edge.is_linked and (edge.father in self._reports or edge.father in claims):
                found.append(r.EdgeDetached(edge_id=edge.edge_id))  # its father would know of it
                continue
            gone = edge.father not in image.edges.known and not is_alive(edge.father)
            if not edge.is_linked and not gone:
                continue  # nobody has promised to tell of it
            # Kept until that is written down: a turn that is taken again says the same.
            since = unclaimed[edge.edge_id] = self._unclaimed.get(edge.edge_id, now)
            if now - max(since, self._began_at + SILENCE_S) > GRACE_S:
                found.append(r.EdgeDetached(edge_id=edge.edge_id))
        self._unclaimed = unclaimed
        return found

    def _forgotten(self, image: Image, now: float) -> list[r.Record]:
        """Those that registered and never came."""
        pending = {
            it.edge_id: self._pending.get(it.edge_id, now)
            for it in image.edges.known.values()
            if not it.confirmed and it.father != NOBODY
        }
        self._pending = pending
        return [
            r.EdgeRemoved(edge_id=edge_id)
            for edge_id, since in pending.items()
            if now - since > PENDING_S and not image.edges.children(edge_id)
        ]
