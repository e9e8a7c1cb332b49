"""Images for the tests of this room, built from records alone."""

import pytest

from sapwood.metadata import records as r
from sapwood.metadata.image import Image
from sapwood.wire.errors import ErrorCode, KafkaError


def image_of(nodes: int, *records: r.Record) -> Image:
    image = Image()
    for node_id in range(nodes):
        image.apply(
            r.NodeRegistered(
                node_id=node_id,
                incarnation=1000 + node_id,
                listeners={"kafka": ("h", 9092 + node_id)},
            )
        )
    for record in records:
        image.apply(record)
    return image


def refused(code: ErrorCode) -> "pytest.RaisesExc[KafkaError]":
    return pytest.RaisesExc(KafkaError, check=lambda error: error.code is code)
