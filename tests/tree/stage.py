"""Plays a script: a few servers on a network without chance, and what becomes of their tree.

Lines that begin with ">" are stage directions, the others what comes of them. To write down how
scripts go: `python -m tests.tree.stage FILE …`.

    > core a x y             these core nodes are there; the first one is the supervisor
    > start d b              the edge d starts, and wishes to hang from b
    > wait 0.5               time passes
    > kill d [b …]           their processes die, at the same moment
    > vanish d [b …]         their hosts die: nobody is told
    > cut d b, mend          no message passes between the two any more; between all it does again
    > silence                there is no supervisor any more
    > supervise x            it is x
    > report b d             b tells the supervisor that d is dead
    > tree                   as the supervisor has it, and in truth where that differs
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from sapwood.metadata.edges import FIRST_EDGE_ID
from sapwood.tree import supervisor
from sapwood.wire.errors import KafkaError
from sim.tree.forest import EdgeNode, Forest, Node


class Stage(Forest):
    def __init__(self, cores: Sequence[str], edges: Sequence[str]) -> None:
        super().__init__(0, len(cores), len(edges))
        self.weather.delay_s = 0.001
        self.names = dict(enumerate(cores)) | dict(enumerate(edges, FIRST_EDGE_ID))
        self.ids = {name: node_id for node_id, name in self.names.items()}
        self.lines: list[str] = []
        self._told: dict[int, str] = {}

    def named(self, name: str) -> Node:
        found = self.node(self.ids[name])
        assert found is not None
        return found

    def delay_s(self) -> float:
        return self.weather.delay_s

    def trace(self, node: Node | None, what: str) -> None:
        """Whoever hangs from another one than before is told of."""
        if isinstance(node, EdgeNode) and node.up:
            parent = node.edge.parent
            said = "is an orphan" if parent is None else f"hangs from {self.names[parent.node_id]}"
            if self._told.get(node.node_id, "is an orphan") != said:
                self.lines.append(f"  {self.names[node.node_id]} {said}")
            self._told[node.node_id] = said

    # -- directions --------------------------------------------------------------------------

    def play(self, direction: str) -> None:
        self.lines.append(f"> {direction}")
        verb, *rest = direction.split()
        getattr(self, f"do_{verb}")(*rest)

    def do_core(self, *names: str) -> None:
        for name in names:
            self.named(name).start()
        self.do_supervise(names[0])
        self.supervise()

    def do_start(self, name: str, father: str = "") -> None:
        node = self.named(name)
        if father:
            self.wishes[node.node_id] = str(self.ids[father])
        node.start()
        self.do_wait("0.1")

    def do_wait(self, length: str) -> None:
        self.run_until(self.now + float(length))

    def do_kill(self, *names: str) -> None:
        for name in names:
            self.broken(self.named(name))
        self.do_vanish(*names)

    def do_vanish(self, *names: str) -> None:
        for name in names:
            node = self.named(name)
            node.stop()
            self._told.pop(node.node_id, None)
            if node is self.controller:
                self.controller = None

    def do_cut(self, one: str, other: str) -> None:
        a, b = self.ids[one], self.ids[other]
        self.cut |= {(a, b), (b, a)}

    def do_mend(self) -> None:
        self.cut.clear()

    def do_silence(self) -> None:
        self.elect(None)

    def do_supervise(self, name: str) -> None:
        self.elect(self.cores[self.ids[name]])

    def do_report(self, reporter: str, node: str) -> None:
        names = str(self.ids[reporter]), str(self.ids[node])
        try:
            self.commit(supervisor.report_down(self.image, *names))
        except KafkaError as error:
            self.lines.append(f"  {error}")

    def do_tree(self) -> None:
        told = {it.edge_id: it.father for it in self.image.edges.known.values() if it.confirmed}
        true = {
            it.node_id: it.edge.parent.node_id
            for it in self.edges.values()
            if it.up and it.edge.parent is not None
        }
        told_cores = [it for it in self.cores if self.is_alive(it)]
        true_cores = [it for it in self.cores if self.cores[it].up]
        shown, truth = self.drawn(told, told_cores), self.drawn(true, true_cores)
        self.lines.append(f"  {shown}" if shown == truth else f"  {shown}, but in truth {truth}")

    def drawn(self, fathers: dict[int, int], cores: Sequence[int]) -> str:
        def branch(node_id: int) -> str:
            below = [branch(it) for it in sorted(fathers) if fathers[it] == node_id]
            return self.names[node_id] + (f"({' '.join(below)})" if below else "")

        return " ".join(branch(it) for it in cores)


def played(script: str) -> str:
    """The script as it really goes: its directions, and what comes of them."""
    lines = script.splitlines()
    title = [it for it in lines if it.startswith("#")]
    directions = [it.removeprefix("> ") for it in lines if it.startswith("> ")]
    cores = directions[0].split()[1:]
    edges = [it.split()[1] for it in directions if it.startswith("start ")]
    stage = Stage(cores, list(dict.fromkeys(edges)))
    for direction in directions:
        stage.play(direction)
    return "\n".join([*title, *stage.lines]) + "\n"


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        path = Path(argument)
        path.write_text(played(path.read_text(encoding="utf-8")), encoding="utf-8")
