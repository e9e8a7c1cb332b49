"""The words of the tree as private messages, and back."""

from __future__ import annotations

from collections.abc import Iterable

from sapwood.tree.words import (
    Advert,
    Answer,
    Attach,
    Attached,
    Claim,
    Place,
    Refusal,
    Refused,
    Since,
    Standing,
)
from sapwood.wire.codec import Struct
from sapwood.wire.errors import MalformedMessage

_NO_DEPTH = -1


def encode_claims(claims: Iterable[Claim]) -> list[Struct]:
    return [
        Struct(
            **it.child._asdict(),
            father=it.father,
            **it.since._asdict(),
            healing_ms=min(it.healing_ms, 2**31 - 1),
            load=it.load,
        )
        for it in claims
    ]


def decode_claims(claims: Iterable[Struct]) -> tuple[Claim, ...]:
    return tuple(
        Claim(
            Place(it.node_id, it.host, it.port),
            it.father,
            Since(it.incarnation, it.attachment),
            it.healing_ms,
            it.load,
        )
        for it in claims
    )


def encode_attach(attach: Attach) -> Struct:
    return Struct(
        **attach.child._asdict(),
        **attach.since._asdict(),
        number=attach.number,
        renewing=attach.renewing,
        feasible_beacon=attach.feasible.beacon,
        feasible_depth=attach.feasible.depth,
        wanted=attach.wanted,
        seen=attach.seen,
        claims=None if attach.claims is None else encode_claims(attach.claims),
        healing_ms=min(attach.healing_ms, 2**31 - 1),
        load=attach.load,
    )


def decode_attach(message: Struct) -> Attach:
    return Attach(
        child=Place(message.node_id, message.host, message.port),
        since=Since(message.incarnation, message.attachment),
        number=message.number,
        renewing=message.renewing,
        feasible=Advert(message.feasible_beacon, message.feasible_depth),
        wanted=message.wanted,
        seen=message.seen,
        claims=None if message.claims is None else decode_claims(message.claims),
        healing_ms=message.healing_ms,
        load=message.load,
    )


def encode_answer(answer: Answer) -> Struct:
    if isinstance(answer, Refused):
        return Struct(refusal=int(answer.reason))
    standing = answer.standing
    advert = standing.advert or Advert(-1, _NO_DEPTH)
    return Struct(
        refusal=0,
        version=standing.version,
        beacon=advert.beacon,
        depth=advert.depth,
        ancestors=_encode_places(standing.ancestors),
        cores=_encode_places(standing.cores),
        siblings=_encode_places(standing.siblings),
        is_cut_off=standing.is_cut_off,
    )


def decode_answer(number: int, message: Struct) -> Answer:
    """The answer to the request of that number."""
    if message.refusal:
        try:
            return Refused(number, Refusal(message.refusal))
        except ValueError as error:
            raise MalformedMessage(f"a refusal of kind {message.refusal}") from error
    has_way_up = message.depth != _NO_DEPTH
    standing = Standing(
        message.version,
        Advert(message.beacon, message.depth) if has_way_up else None,
        _decode_places(message.ancestors),
        _decode_places(message.cores),
        _decode_places(message.siblings),
        message.is_cut_off,
    )
    return Attached(number, standing)


def _encode_places(places: Iterable[Place]) -> list[Struct]:
    return [Struct(**it._asdict()) for it in places]


def _decode_places(places: Iterable[Struct]) -> tuple[Place, ...]:
    return tuple(Place(it.node_id, it.host, it.port) for it in places)
