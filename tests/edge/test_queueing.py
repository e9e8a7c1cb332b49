"""Which produce is queued by an edge with an outbox, and what it is told."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

from sapwood.client.messages import message_key
from sapwood.disk import OsDisk
from sapwood.edge.knowing import Known
from sapwood.edge.outbox import Outbox
from sapwood.edge.queueing import Queueing
from sapwood.server import Connection, Request
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct, decode_response, encode_request
from sapwood.wire.errors import ErrorCode
from sapwood.wire.frames import RequestHeader, decode_response_header
from sapwood.wire.records import encode_batch
from tests.broker.asking import Peer, on_a_loop
from tests.edge.test_knowing import ID, answer, topic
from tests.edge.test_outbox import now_ms

BATCH = bytes(encode_batch([(0, None, b"value", ())]))
PLACE = ("orders", 1)


class Asking:
    def __init__(self, outbox: Outbox, queueing: Queueing) -> None:
        self.outbox = outbox
        self._queueing = queueing

    async def produce(
        self,
        records: bytes | None = BATCH,
        *,
        name: str = "orders",
        partition: int = 1,
        acks: int = 1,
        version: int = 9,
        cut_off: bool = True,
        may_queue: bool = False,
        transactional_id: str | None = None,
    ) -> Struct | None:
        """The answer for the one partition; None if it is not queued."""
        part = Struct(index=partition, records=records)
        message = Struct(
            transactional_id=transactional_id,
            acks=acks,
            timeout=1000,
            may_queue=may_queue,
            topic_data=[Struct(name=name, topic_id=ID, partition_data=[part])],
        )
        body = memoryview(bytearray(b"".join(encode_request(Api.PRODUCE, version, message))))
        header = RequestHeader(Api.PRODUCE, version, 7, "test")
        request = Request(header, body, 0, cast(Connection, Peer()))
        asked = self._queueing.produce(request, is_cut_off=cut_off)
        if asked is None:
            return None
        frame = memoryview(b"".join(await asked))[4:]
        _, start = decode_response_header(Api.PRODUCE, version, frame)
        (told,) = decode_response(Api.PRODUCE, version, frame, start).responses
        (result,) = told.partition_responses
        return cast(Struct, result)


@asynccontextmanager
async def asking(directory: Path) -> AsyncIterator[Asking]:
    outbox = Outbox(OsDisk(), str(directory), 1 << 20, now_ms, os.urandom)
    known = Known(outbox.journal)
    internal = topic("__consumer_offsets", 3, b"i" * 16)
    known.learn_topics(answer(topic("orders", 3), internal), is_all=True)
    try:
        yield Asking(outbox, Queueing(outbox, known))
    finally:
        await outbox.close()


@on_a_loop
async def test_one_acknowledgement_is_given_without_an_offset_in_every_version(
    tmp_path: Path,
) -> None:
    async with asking(tmp_path) as it:
        for version in range(3, 14):
            result = await it.produce(version=version)
            assert result is not None
            assert (result.error_code, result.base_offset) == (0, -1)
        assert it.outbox.records == 11


@on_a_loop
async def test_nothing_is_queued_while_the_cluster_is_there_unless_it_has_to_wait_its_turn(
    tmp_path: Path,
) -> None:
    async with asking(tmp_path) as it:
        assert await it.produce(cut_off=False) is None
        await it.produce()
        assert await it.produce(cut_off=False) is not None
        assert await it.produce(cut_off=False, partition=0) is None


@on_a_loop
async def test_what_is_to_be_at_all_replicas_or_at_none_is_not_queued(tmp_path: Path) -> None:
    async with asking(tmp_path) as it:
        assert await it.produce(acks=-1) is None
        assert await it.produce(acks=0) is None
        assert await it.produce(transactional_id="t") is None


@on_a_loop
async def test_what_its_producer_has_numbered_is_not_queued(tmp_path: Path) -> None:
    numbered = encode_batch([(0, None, b"v", ())], producer_id=5, producer_epoch=0, base_sequence=0)
    async with asking(tmp_path) as it:
        assert await it.produce(bytes(numbered)) is None
        assert await it.produce(bytes(numbered), acks=-1, may_queue=True) is None


@on_a_loop
async def test_what_has_an_id_and_may_be_queued_is(tmp_path: Path) -> None:
    (producer_id, epoch), sequence = message_key("orders", "an id")
    keyed = encode_batch(
        [(0, None, b"v", ())],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    async with asking(tmp_path) as it:
        assert await it.produce(bytes(keyed), acks=-1) is None
        result = await it.produce(bytes(keyed), acks=-1, may_queue=True)
        assert result is not None
        assert (result.error_code, result.base_offset) == (0, -1)


@on_a_loop
async def test_what_could_not_be_delivered_is_refused_at_once(tmp_path: Path) -> None:
    broken = bytearray(BATCH)
    broken[-1] ^= 1
    control = bytes(encode_batch([(0, b"k", b"v", ())], control=True))
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    async with asking(tmp_path) as it:
        for code, result in (
            (unknown, await it.produce(name="nothing")),
            (unknown, await it.produce(partition=3)),
            (unknown, await it.produce(partition=-1)),
            (ErrorCode.INVALID_TOPIC_EXCEPTION, await it.produce(name="__consumer_offsets")),
            (ErrorCode.CORRUPT_MESSAGE, await it.produce(bytes(broken))),
            (ErrorCode.CORRUPT_MESSAGE, await it.produce(BATCH + BATCH)),
            (ErrorCode.CORRUPT_MESSAGE, await it.produce(BATCH[:30])),
            (ErrorCode.CORRUPT_MESSAGE, await it.produce(None)),
            (ErrorCode.INVALID_RECORD, await it.produce(control)),
        ):
            assert result is not None
            assert result.error_code == code
        assert not it.outbox
