"""Sapwood's own messages, as nodes and tools use them; the codec's tests draw theirs by chance."""

from typing import Any

import pytest

from sapwood.wire.apis import Api, codec_versions
from sapwood.wire.codec import (
    Buffer,
    Struct,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from sapwood.wire.private import MESSAGES
from sapwood.wire.private.times import Span, pack_spans
from tests.wire.samples import comparable

TOPIC_ID = bytes(range(16))
GROUP = {"topic_id": TOPIC_ID, "partition": 3}
PLACE = {"node_id": 10_000, "host": "e", "port": 9092}
VOTERS = [Struct(node=1, incarnation=2**62), Struct(node=2, incarnation=0)]

REQUESTS: dict[Api, Struct] = {
    Api.NODE_STATUS: Struct(),
    Api.AUTHENTICATE: Struct(step=1, node_id=-1, nonce=bytes(32), proof=b"p" * 32),
    Api.REPLICA_FETCH: Struct(
        hlc=2**50,
        node_id=2,
        session_id=7,
        sequence=3,
        seen=1,
        groups=[
            Struct(
                **GROUP,
                epoch=4,
                incarnation=2**60,
                last_epoch=4,
                fetch_offset=100,
                durable_epoch=3,
                durable_offset=90,
                high_watermark=80,
            )
        ],
        forgotten=[Struct(**GROUP)],
        max_bytes=1 << 20,
        max_wait_ms=500,
        promised=2**50 - 7,
    ),
    Api.REPLICA_VOTE: Struct(
        hlc=1,
        node_id=2,
        groups=[
            Struct(**GROUP, term=5, pre_vote=True, incarnation=9, last_epoch=4, end_offset=100)
        ],
    ),
    Api.ANNOUNCE: Struct(
        hlc=1,
        node_id=2,
        full=True,
        wants=True,
        leaders=[Struct(**GROUP, epoch=5, voters=VOTERS, in_sync=[1, 2], confirmed=False)],
    ),
    Api.TRANSFER: Struct(hlc=1, node_id=2, groups=[Struct(**GROUP, epoch=5)]),
    Api.FORWARD: Struct(listener="main", address="10.0.0.1", principal=None, frame=b"asked"),
    Api.JOIN: Struct(
        cluster_id=None,
        node_id=-1,
        incarnation=77,
        listeners=[Struct(name="main", host="localhost", port=9092)],
        rack="r1",
        version="0.1.0",
    ),
    Api.CHANGE_NODE: Struct(node_id=4, action=1),
    Api.RECOVER_PARTITION: Struct(topic="orders", partition=0),
    Api.DESCRIBE_REPLICAS: Struct(topics=["orders"]),
    Api.CHANGE_CLIENT: Struct(kind=2, action=1, name="reader", topic="orders", partition=3),
    Api.LIST_CLIENTS: Struct(),
    Api.RESERVE_PRODUCER_IDS: Struct(),
    Api.END_TXN_GROUP: Struct(
        query="spark/sales",
        batch_id=7,
        children=[
            Struct(transactional_id="spark/sales␟7/0/0", producer_id=2**40, producer_epoch=3)
        ],
        committed=True,
    ),
    Api.HELD_OFFSET: Struct(topic="orders", partition=3),
    Api.APPEND_TIMES: Struct(
        isolation_level=1,
        wanted=2**50,
        max_wait_ms=500,
        topics=[
            Struct(
                name="orders",
                partitions=[Struct(partition=3, start_offset=5, end_offset=9, after=2**40)],
            )
        ],
    ),
    Api.TOPIC_TIMES: Struct(wanted=2**50, max_wait_ms=500, topics=["orders", "payments"]),
    Api.ATTACH: Struct(
        **PLACE,
        incarnation=2**50,
        attachment=3,
        number=17,
        renewing=True,
        feasible_beacon=2**40,
        feasible_depth=2,
        wanted=-1,
        seen=5,
        claims=[Struct(**PLACE, father=2, incarnation=1, attachment=1, healing_ms=80, load=3)],
        healing_ms=120,
        load=4,
    ),
    Api.REGISTER_EDGE: Struct(
        edge_id=-1, host="e", port=9, ports=[Struct(name="rest", port=8080)], wish="h:9092"
    ),
    Api.CONFIRM_EDGE: Struct(father="h:9092", child="10000"),
    Api.REPORT_DOWN: Struct(reporter="10001", node="10000"),
    Api.REPORT_TREE: Struct(load=7, claims=[]),
    Api.DESCRIBE_TREE: Struct(),
    Api.RELAY: Struct(
        listener="kafka",
        address="10.0.0.9",
        principal=None,
        opened_after_s=-2.5,
        here=True,
        frame=b"\0\3\0\1",
    ),
    Api.OUTBOX: Struct(),
}

RESPONSES: dict[Api, Struct] = {
    Api.NODE_STATUS: Struct(
        error_code=0,
        error_message=None,
        node_id=1,
        kind="core",
        pid=4711,
        version="0.1.0",
        listeners=[Struct(name="main", host="localhost", port=9092)],
        metrics=[Struct(name="requests_total", value=12.5)],
        offline_partitions=[Struct(topic="a", partition=3, reason="corrupt")],
        cluster_id="abc",
        controller=2,
        controller_epoch=9,
        nodes=[
            Struct(
                node_id=1,
                alive=True,
                draining=False,
                host="localhost",
                port=9092,
                rack=None,
                replicas=60,
                leaders=20,
            )
        ],
        under_replicated=1,
        offline=2,
        leaderless=3,
        reassigning=4,
        healthy=False,
    ),
    Api.AUTHENTICATE: Struct(
        error_code=0, error_message=None, node_id=3, nonce=bytes(32), proof=b"p" * 32
    ),
    Api.REPLICA_FETCH: Struct(
        error_code=0,
        hlc=2**50,
        session_id=7,
        groups=[
            Struct(
                **GROUP,
                error_code=0,
                epoch=4,
                leader=1,
                high_watermark=95,
                start_offset=10,
                diverging_epoch=3,
                diverging_offset=99,
                snapshot=b"snap",
                after_epoch=4,
                after_offset=100,
                entries=b"entries",
            )
        ],
        closing=True,
    ),
    Api.REPLICA_VOTE: Struct(
        hlc=1, groups=[Struct(**GROUP, term=5, granted=True, incarnation=8, leader=-1)]
    ),
    Api.ANNOUNCE: Struct(hlc=1),
    Api.TRANSFER: Struct(hlc=1),
    Api.FORWARD: Struct(error_code=0, error_message=None, frame=b"answered"),
    Api.JOIN: Struct(
        error_code=0,
        error_message=None,
        cluster_id="abc",
        node_id=4,
        metadata_voters=VOTERS,
        members=[Struct(node_id=1, host="localhost", port=9092)],
    ),
    Api.CHANGE_NODE: Struct(error_code=41, error_message="ask node 2"),
    Api.RECOVER_PARTITION: Struct(error_code=0, error_message=None),
    Api.DESCRIBE_REPLICAS: Struct(
        groups=[
            Struct(
                **GROUP,
                topic="orders",
                role="leader",
                term=5,
                leader=1,
                epoch=5,
                log_start=0,
                log_end=100,
                high_watermark=95,
                voters=VOTERS,
                learners=[3],
                in_sync=[1, 2],
                target=[1, 2, 3],
                offline_reason=None,
                followers=[Struct(node=2, incarnation=8, log_end=100, durable_end=95, heard_ms=12)],
            )
        ]
    ),
    Api.CHANGE_CLIENT: Struct(error_code=42, error_message="no"),
    Api.LIST_CLIENTS: Struct(
        producers=[Struct(name="writer", topic="orders", partition=-1)],
        consumers=[Struct(name="reader", topic="orders", partition=3)],
    ),
    Api.RESERVE_PRODUCER_IDS: Struct(
        error_code=0, error_message=None, first_id=1 << 40, next_id=(1 << 40) + 1000
    ),
    Api.END_TXN_GROUP: Struct(error_code=0, error_message=None, last_batch_id=7, already_done=True),
    Api.HELD_OFFSET: Struct(error_code=0, error_message=None, offset=95),
    Api.APPEND_TIMES: Struct(
        topics=[
            Struct(
                name="orders",
                topic_id=TOPIC_ID,
                partitions=[
                    Struct(
                        partition=3,
                        error_code=0,
                        closed_time=2**50,
                        closed_offset=12,
                        next_offset=9,
                        following_offset=10,
                        after_offset=4,
                        spans=pack_spans([Span(5, 8, 2**49)]),
                    )
                ],
            )
        ]
    ),
    Api.TOPIC_TIMES: Struct(
        error_code=0,
        error_message=None,
        closed_time=2**50,
        topics=[Struct(name="orders", topic_id=TOPIC_ID, partitions=4)],
    ),
    Api.ATTACH: Struct(
        error_code=0,
        error_message=None,
        refusal=0,
        version=6,
        beacon=2**40 + 1,
        depth=1,
        ancestors=[Struct(**PLACE)],
        cores=[Struct(node_id=0, host="h", port=9092)],
        siblings=[],
        is_cut_off=True,
    ),
    Api.REGISTER_EDGE: Struct(
        error_code=0, error_message=None, edge_id=10_000, father=0, host="h", port=9092
    ),
    Api.CONFIRM_EDGE: Struct(error_code=42, error_message="not the father"),
    Api.REPORT_DOWN: Struct(error_code=0, error_message=None),
    Api.REPORT_TREE: Struct(
        error_code=0, error_message=None, loads=[Struct(node_id=10_000, load=12)]
    ),
    Api.DESCRIBE_TREE: Struct(
        error_code=0, error_message=None, drawing="cluster oak\n", document="{}"
    ),
    Api.RELAY: Struct(error_code=0, error_message=None, closes=True, frame=b"\0\0\0\7"),
    Api.OUTBOX: Struct(
        error_code=0,
        error_message=None,
        node_id=10_000,
        is_cut_off=True,
        size_bytes=5000,
        limit_bytes=1 << 28,
        delivered_total=3,
        refused_total=2,
        aside_total=1,
        partitions=[Struct(topic="t", partition=1, records=7, size_bytes=5000)],
    ),
}


def names(api: Api) -> str:
    return api.name


def test_every_private_api_has_both_messages_in_every_version_and_an_example_here() -> None:
    private = [api for api in Api if api >= Api.NODE_STATUS]
    assert list(REQUESTS) == list(RESPONSES) == private
    versions = {
        (api, version)
        for api in private
        for version in range(codec_versions(api)[0], codec_versions(api)[1] + 1)
    }
    assert MESSAGES.keys() == versions


@pytest.mark.parametrize("api", REQUESTS, ids=names)
def test_a_private_message_arrives_as_it_was_sent(api: Api) -> None:
    request = b"".join(encode_request(api, 0, REQUESTS[api]))
    assert comparable(decode_request(api, 0, request)) == comparable(REQUESTS[api])
    response = b"".join(encode_response(api, 0, RESPONSES[api]))
    assert comparable(decode_response(api, 0, response)) == comparable(RESPONSES[api])


def fetched(entries: Any) -> Struct:
    group = Struct(**GROUP, epoch=4, leader=1, high_watermark=95, start_offset=0, entries=entries)
    return Struct(hlc=1, session_id=7, groups=[group])


def test_fetched_entries_leave_by_reference_one_buffer_or_many() -> None:
    first, second = bytes(10_000), memoryview(bytes(20_000))
    choices: list[list[Buffer]] = [[first], [first, second]]
    for given in choices:
        parts = encode_response(
            Api.REPLICA_FETCH, 0, fetched(given if len(given) > 1 else given[0])
        )
        for buffer in given:
            assert any(part is buffer for part in parts)
        answer = decode_response(Api.REPLICA_FETCH, 0, b"".join(parts))
        assert answer.groups[0].entries == b"".join(given)


def test_fetched_entries_arrive_as_a_view_of_the_frame() -> None:
    frame = bytearray(b"".join(encode_response(Api.REPLICA_FETCH, 0, fetched(b"abc" * 5000))))
    entries = decode_response(Api.REPLICA_FETCH, 0, memoryview(frame)).groups[0].entries
    assert isinstance(entries, memoryview)
    frame[frame.index(b"abc")] = ord("X")
    assert bytes(entries[:3]) == b"Xbc"


def test_a_group_that_has_nothing_new_takes_its_defaults() -> None:
    data = b"".join(encode_response(Api.REPLICA_FETCH, 0, fetched(None)))
    (group,) = decode_response(Api.REPLICA_FETCH, 0, data).groups
    assert (group.error_code, group.entries, group.snapshot) == (0, None, None)
    assert (group.diverging_epoch, group.diverging_offset) == (-1, -1)


def test_a_forwarded_frame_is_not_copied_either_way() -> None:
    frame = bytes(10_000)
    request = Struct(listener="main", address="10.0.0.1", frame=[b"head", frame])
    parts = encode_request(Api.FORWARD, 0, request)
    assert any(part is frame for part in parts)
    decoded = decode_request(Api.FORWARD, 0, bytearray(b"".join(parts)))
    assert isinstance(decoded.frame, memoryview)
    assert decoded.frame == b"head" + frame
    assert any(part is frame for part in encode_response(Api.FORWARD, 0, Struct(frame=frame)))


def test_a_node_that_knows_no_cluster_still_tells_its_status() -> None:
    alone = Struct(
        node_id=1, kind="core", pid=1, version="0", listeners=[], metrics=[], offline_partitions=[]
    )
    status = decode_response(
        Api.NODE_STATUS, 0, b"".join(encode_response(Api.NODE_STATUS, 0, alone))
    )
    assert (status.controller, status.nodes, status.healthy) == (-1, [], False)
