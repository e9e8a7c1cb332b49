"""The compiled codec against kio's reader and writer and against the naive twin."""

import random
from typing import Any

import pytest
from kio.serial import entity_reader, entity_writer

from sapwood.wire.apis import Api
from sapwood.wire.codec import (
    Struct,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from sapwood.wire.errors import MalformedMessage
from tests.wire.samples import (
    ALL_APIS,
    comparable,
    messages_of,
    naive_bytes,
    plain,
    random_message,
    unsigned_varint,
)

KAFKA_APIS = [api for api in ALL_APIS if api < 20000]


def names(api: int) -> str:
    return Api(api).name


def written_by_kio(message: Any) -> bytes:
    import io

    stream = io.BytesIO()
    entity_writer(type(message))(stream, message)
    return stream.getvalue()


@pytest.mark.parametrize("api", KAFKA_APIS, ids=names)
def test_every_version_writes_the_bytes_of_kio_and_reads_its_values(api: int) -> None:
    chance = random.Random(api)
    for kind in messages_of(api):
        read = entity_reader(kind.message_class)
        for _ in range(4):
            message = random_message(kind.message_class, chance)
            data = written_by_kio(message)
            assert read(data, 0)[0] == message
            expected = plain(message)
            assert kind.encode(expected) == data, str(kind)
            assert comparable(kind.decode(data)) == comparable(expected), str(kind)


@pytest.mark.parametrize("api", ALL_APIS, ids=names)
def test_every_version_agrees_with_the_naive_twin_and_skips_unknown_tags_at_every_level(
    api: int,
) -> None:
    chance = random.Random(-api)

    def tags_of_the_future() -> dict[int, bytes]:
        tags = (chance.choice((40, 41, 127, 128, 300, 2**21, 2**32 - 1)) for _ in range(3))
        return {tag: chance.randbytes(chance.choice((0, 1, 40, 200))) for tag in tags}

    for kind in messages_of(api):
        for _ in range(3):
            message = random_message(kind.message_class, chance)
            expected = plain(message)
            assert kind.encode(expected) == naive_bytes(message), str(kind)
            data = naive_bytes(message, tags_of_the_future)
            assert comparable(kind.decode(data)) == comparable(expected), str(kind)


def test_what_a_client_of_ours_says_in_a_message_of_kafkas_is_understood_and_passed_over() -> None:
    message = Struct(transactional_id=None, acks=-1, timeout=1000, topic_data=[])
    usual = b"".join(encode_request(Api.PRODUCE, 9, message))
    told = b"".join(encode_request(Api.PRODUCE, 9, Struct(**vars(message), may_queue=True)))
    assert decode_request(Api.PRODUCE, 9, told).may_queue is True
    assert decode_request(Api.PRODUCE, 9, usual).may_queue is False
    assert told.startswith(usual[:-1]), "only a tagged field is added"
    older = b"".join(encode_request(Api.PRODUCE, 8, Struct(**vars(message), may_queue=True)))
    assert older == b"".join(encode_request(Api.PRODUCE, 8, message))


def test_a_section_of_more_than_127_unknown_tags_is_skipped() -> None:
    tags = b"".join(unsigned_varint(tag) + b"\1x" for tag in range(300))
    body = b"\2a\2b" + unsigned_varint(300) + tags
    request = decode_request(Api.API_VERSIONS, 3, body)
    assert request == Struct(client_software_name="a", client_software_version="b")


def test_a_missing_attribute_takes_its_default_and_a_superfluous_one_is_ignored() -> None:
    partition = Struct(
        partition=3, fetch_offset=7, partition_max_bytes=100, not_in_any_version="ignored"
    )
    request = Struct(
        max_wait=500,
        min_bytes=1,
        topics=[Struct(topic="a", partitions=[partition])],
        forgotten_topics_data=[],
        not_in_any_version="ignored",
    )
    decoded = decode_request(Api.FETCH, 12, b"".join(encode_request(Api.FETCH, 12, request)))
    assert decoded.max_bytes == 2**31 - 1
    assert decoded.rack_id == ""
    assert decoded.cluster_id is None
    assert decoded.topics[0].partitions[0].current_leader_epoch == -1
    assert not hasattr(decoded, "not_in_any_version")


def test_a_missing_attribute_without_default_is_named_in_the_error() -> None:
    with pytest.raises(TypeError, match="min_bytes"):
        encode_request(Api.FETCH, 12, Struct(max_wait=1, topics=[], forgotten_topics_data=[]))


def test_a_value_out_of_range_is_the_fault_of_the_caller() -> None:
    with pytest.raises(TypeError, match="version 0"):
        encode_response(Api.HEARTBEAT, 0, Struct(error_code=2**15))


def test_defaults_of_tagged_fields_are_not_shared_between_messages() -> None:
    message = Struct(max_wait=1, min_bytes=1, topics=[], forgotten_topics_data=[])
    data = b"".join(encode_request(Api.FETCH, 15, message))
    first = decode_request(Api.FETCH, 15, data)
    first.replica_state.replica_id = 9
    assert decode_request(Api.FETCH, 15, data).replica_state.replica_id == -1


def fetch_response(records: Any) -> Struct:
    partition = Struct(
        partition_index=0,
        error_code=0,
        high_watermark=0,
        aborted_transactions=None,
        records=records,
    )
    return Struct(
        throttle_time=0,
        error_code=0,
        responses=[Struct(topic="t", partitions=[partition])],
    )


@pytest.mark.parametrize("version", [4, 12])
def test_large_records_are_passed_by_reference_and_small_ones_are_joined(version: int) -> None:
    first, second, small = bytes(10_000), memoryview(bytes(20_000)), b"small"
    parts = encode_response(Api.FETCH, version, fetch_response([first, second]))
    assert any(part is first for part in parts)
    assert any(part is second for part in parts)
    assert len(parts) == 4
    assert len(encode_response(Api.FETCH, version, fetch_response([small, small]))) == 1
    given: list[Any] = [first, [first], [first, second], [small], small, bytearray(small), [], None]
    for records in given:
        data = b"".join(encode_response(Api.FETCH, version, fetch_response(records)))
        decoded = decode_response(Api.FETCH, version, data).responses[0].partitions[0].records
        if isinstance(records, list):
            assert decoded == b"".join(records)
        else:
            assert decoded == records


def test_records_are_decoded_as_writable_views_of_the_callers_memory() -> None:
    frame = bytearray(b"".join(encode_response(Api.FETCH, 12, fetch_response(b"abc"))))
    records = decode_response(Api.FETCH, 12, memoryview(frame)).responses[0].partitions[0].records
    records[0] = ord("X")
    assert b"Xbc" in frame


def test_a_message_is_decoded_from_an_offset_on() -> None:
    data = b"junk" + b"".join(
        encode_response(Api.HEARTBEAT, 1, Struct(throttle_time=5, error_code=3))
    )
    decoded = decode_response(Api.HEARTBEAT, 1, data, 4)
    assert decoded == Struct(throttle_time=5, error_code=3)


@pytest.mark.parametrize(("api", "version"), [(0, 2), (0, 999), (4, 0), (-1, 0), (19999, 0)])
def test_to_read_what_has_no_schema_is_the_senders_fault_and_to_write_it_is_ours(
    api: int, version: int
) -> None:
    with pytest.raises(MalformedMessage, match=f"API key {api}, version {version}"):
        decode_request(api, version, b"")
    with pytest.raises(ValueError, match=f"API key {api}, version {version}"):
        encode_response(api, version, Struct())
