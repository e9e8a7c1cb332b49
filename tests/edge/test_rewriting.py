"""No answer that passes an edge names a node of the core."""

import re
from typing import Any

import pytest

from sapwood.broker.serving import SERVED
from sapwood.edge.rewriting import View, rewritten
from sapwood.edge.siblings import Sibling
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct, decode_response
from sapwood.wire.frames import RequestHeader, decode_response_header, encode_response_frame
from sapwood.wire.schema import Entity, Field, load

CORE_HOST = "core.example"
CORE_ID = 7_654_321
CORE_PORT = 54_321

NAMES_A_NODE = re.compile(r"(^|_)(node|broker|leader|controller|replica)(_id|_nodes)?s?$")
NAMES_REPLICAS = re.compile(r"replicas$|_elr$|read_replica$")

# For operators, who ask about the core and have its secret.
FOR_OPERATORS = {Api.NODE_STATUS}

US = Sibling(10_001, "edge.example", 9092)
SIBLING = Sibling(10_002, "sibling.example", 9093)
VIEW = View([US, SIBLING], US)


def value(field: Field, error_code: int) -> Any:
    if field.entity is not None:
        return filled(field.entity, error_code)
    if field.kind == "string":
        return CORE_HOST if field.name == "host" else "x"
    if field.kind == "uuid":
        return bytes(16)
    if field.kind in ("bytes", "records"):
        return b""
    if field.kind == "bool":
        return False
    if field.name == "port":
        return CORE_PORT
    if field.name == "error_code":
        return error_code
    names_a_node = NAMES_A_NODE.search(field.name) or NAMES_REPLICAS.search(field.name)
    return CORE_ID if field.kind == "int32" and names_a_node else 1


def filled(entity: Entity, error_code: int) -> Struct:
    """Every field has a value, and those that can name a node name one of the core."""
    return Struct(
        **{
            field.name: [value(field, error_code)] * 2
            if field.is_array
            else value(field, error_code)
            for field in (*entity.fields, *entity.tagged)
        }
    )


def public_answers() -> list[tuple[Api, int]]:
    return [
        (Api(key), version)
        for key, served in SERVED.items()
        if key < Api.NODE_STATUS or key == Api.END_TXN_GROUP
        for version in range(served.first, served.last + 1)
    ]


@pytest.mark.parametrize("error_code", [0, 6])
@pytest.mark.parametrize(("api", "version"), public_answers())
def test_no_answer_tells_where_the_core_is(api: Api, version: int, error_code: int) -> None:
    answer = filled(load(api, version, "response"), error_code)
    frame = b"".join(encode_response_frame(api, version, 5, answer))
    header = RequestHeader(api, version, 5, "client")
    parts = rewritten(header, memoryview(frame)[4:], VIEW)
    told = frame if parts is None else b"".join(parts)
    assert CORE_HOST.encode() not in told
    assert CORE_ID.to_bytes(4, "big") not in told
    assert CORE_PORT.to_bytes(2, "big") not in told


def test_everybody_is_led_by_the_edge_that_was_chosen_for_the_client() -> None:
    answer = filled(load(Api.METADATA, 12, "response"), 0)
    header = RequestHeader(Api.METADATA, 12, 5, "client")
    frame = b"".join(encode_response_frame(Api.METADATA, 12, 5, answer))
    parts = rewritten(header, memoryview(frame)[4:], VIEW)
    assert parts is not None
    told = memoryview(b"".join(parts))[4:]
    number, body = decode_response_header(Api.METADATA, 12, told)
    found = decode_response(Api.METADATA, 12, told, body)
    assert number == 5
    assert [(it.node_id, it.host, it.port) for it in found.brokers] == [US, SIBLING]
    assert found.controller_id == US.node_id
    for topic in found.topics:
        for it in topic.partitions:
            assert (it.leader_id, it.replica_nodes, it.isr_nodes) == (
                US.node_id,
                [US.node_id],
                [US.node_id],
            )
