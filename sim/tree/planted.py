"""Bugs of the tree, planted one at a time: a simulation that misses one proves nothing."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from sapwood.metadata import records as r
from sapwood.metadata.image import Image
from sapwood.tree.children import Children, _Child
from sapwood.tree.edge import Edge
from sapwood.tree.supervisor import Supervisor
from sapwood.tree.words import Advert, Attach, Claim, Place, Refusal, Standing
from sim.planting import Plant, patched


def _any_parent_will_do(stack: ExitStack) -> None:
    def refusal(self: Children, attach: Attach, child: object) -> Refusal | None:
        found = original(self, attach, child)  # type: ignore[arg-type]
        return None if found is Refusal.NOT_BETTER else found

    original = Children._refusal
    stack.enter_context(patched(Children, "_refusal", refusal))
    stack.enter_context(
        patched(Edge, "_may_hang_from", lambda self, standing: standing.advert is not None)
    )


def _last_advert_for_the_best(stack: ExitStack) -> None:
    """An edge forgets how near to the core it was, when it has moved further out."""

    def take(self: Edge, now: float, standing: Standing) -> None:
        original(self, now, standing)
        if self.advert is not None:
            self.feasible = self.advert

    original = Edge._take
    stack.enter_context(patched(Edge, "_take", take))


def _orphan_accepts_a_child(stack: ExitStack) -> None:
    def stand(
        self: Children,
        advert: Advert | None,
        ancestors: tuple[Place, ...],
        cores: tuple[Place, ...],
    ) -> None:
        original(self, advert or self.standing.advert, ancestors, cores)

    original = Children.stand
    stack.enter_context(patched(Children, "stand", stand))


def _ancestors_never_renewed(stack: ExitStack) -> None:
    def take(self: Edge, now: float, standing: Standing) -> None:
        if self.parent is not None and standing.ancestors:
            standing = standing._replace(ancestors=self.ancestors)
        original(self, now, standing)

    original = Edge._take
    stack.enter_context(patched(Edge, "_take", take))


def _restarted_parent_takes_anybody(stack: ExitStack) -> None:
    """It answers whoever calls it its parent, though it knows nothing of its life before."""

    def asked(self: Children, now: float, attach: Attach) -> None:
        if attach.child.node_id not in self._children and attach.renewing:
            self._children[attach.child.node_id] = _Child(attach.child, attach.since, now)
        original(self, now, attach)

    original = Children.asked
    stack.enter_context(patched(Children, "asked", asked))


def _every_word_believed(stack: ExitStack) -> None:
    def confirmed(self: Supervisor, image: Image, claims: Mapping[int, Claim]) -> list[r.Record]:
        known = image.edges.known
        return original(self, image, {it: claims[it] for it in claims if it in known})

    original = Supervisor._confirmed
    stack.enter_context(patched(Supervisor, "_confirmed", confirmed))


def _dead_never_erased(stack: ExitStack) -> None:
    stack.enter_context(patched(Supervisor, "_ended", lambda *_: []))


PLANTS: dict[str, Plant] = {
    "any-parent-will-do": _any_parent_will_do,
    "last-advert-for-the-best": _last_advert_for_the_best,
    "orphan-accepts-a-child": _orphan_accepts_a_child,
    "ancestors-never-renewed": _ancestors_never_renewed,
    "restarted-parent-takes-anybody": _restarted_parent_takes_anybody,
    "every-word-believed": _every_word_believed,
    "dead-never-erased": _dead_never_erased,
}
