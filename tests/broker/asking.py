"""A broker on real files in this process, asked without sockets."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Any, cast

from sapwood.broker import Broker, BrokerConfig
from sapwood.disk import OsDisk
from sapwood.server import Connection, Request
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct, decode_response, encode_request
from sapwood.wire.frames import RequestHeader, decode_response_header
from sapwood.wire.records import encode_batch
from tests.replica.held import HeldDisk

ADVERTISED = {"kafka": ("localhost", 9092)}


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


class Peer:
    """What a handler may ask of a connection, and what it did to it."""

    def __init__(self) -> None:
        self.listener = "kafka"
        self.peer = ("127.0.0.1", 50_000)
        self.node: int | None = None
        self.principal: str | None = None
        self.opened_at = math.inf
        self.finished = False

    def finish(self) -> None:
        self.finished = True


class Asking:
    """Requests in, answers out; `peer` is the connection that all of them come from."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.peer = Peer()

    async def ask(self, api: Api, version: int, message: Struct) -> Struct | None:
        """The decoded answer; None if there is none."""
        body = memoryview(bytearray(b"".join(encode_request(api, version, message))))
        header = RequestHeader(api, version, 7, "test")
        answer = self.broker.handle(Request(header, body, 0, cast(Connection, self.peer)))
        frame = answer if isinstance(answer, list) or answer is None else await answer
        if frame is None:
            return None
        data = memoryview(b"".join(frame))[4:]
        _, start = decode_response_header(api, version, data)
        return decode_response(api, version, data, start)

    async def answer(self, api: Api, version: int, message: Struct) -> Struct:
        found = await self.ask(api, version, message)
        if found is None:
            raise AssertionError(f"{api.name} got no answer")
        return found

    async def create(
        self, *names: str, partitions: int = 1, configs: dict[str, str] | None = None
    ) -> list[Struct]:
        topics = [
            Struct(
                name=name,
                num_partitions=partitions,
                replication_factor=-1,
                assignments=[],
                configs=[Struct(name=key, value=it) for key, it in (configs or {}).items()],
            )
            for name in names
        ]
        message = Struct(topics=topics, timeout=10_000, validate_only=False)
        created: list[Struct] = (await self.answer(Api.CREATE_TOPICS, 5, message)).topics
        return created

    async def delete(self, *names: str) -> list[Struct]:
        message = Struct(topic_names=list(names), timeout=10_000)
        deleted: list[Struct] = (await self.answer(Api.DELETE_TOPICS, 5, message)).responses
        return deleted

    async def produce(
        self,
        topic: str,
        records: bytes | bytearray | None = None,
        *,
        partition: int = 0,
        acks: int = -1,
        timeout_ms: int = 10_000,
        version: int = 9,
        transactional_id: str | None = None,
    ) -> Struct | None:
        """The partition's answer; None if there is none."""
        data = batch(b"value") if records is None else records
        message = Struct(
            transactional_id=transactional_id,
            acks=acks,
            timeout=timeout_ms,
            topic_data=[Struct(name=topic, partition_data=[Struct(index=partition, records=data)])],
        )
        answer = await self.ask(Api.PRODUCE, version, message)
        if answer is None:
            return None
        result: Struct = answer.responses[0].partition_responses[0]
        return result

    async def produced(self, topic: str, *args: Any, **kwargs: Any) -> Struct:
        result = await self.produce(topic, *args, **kwargs)
        if result is None:
            raise AssertionError("produce got no answer")
        return result

    async def fetch(
        self,
        topic: str,
        offset: int = 0,
        *,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        isolation_level: int = 0,
    ) -> Struct:
        wanted = Struct(
            partition=0, fetch_offset=offset, log_start_offset=-1, partition_max_bytes=1 << 20
        )
        message = Struct(
            replica_id=-1,
            max_wait=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=1 << 20,
            isolation_level=isolation_level,
            session_id=0,
            session_epoch=-1,
            topics=[Struct(topic=topic, partitions=[wanted])],
            forgotten_topics_data=[],
            rack_id="",
        )
        answer = await self.answer(Api.FETCH, 11, message)
        result: Struct = answer.responses[0].partitions[0]
        return result


def batch(*values: bytes, **kwargs: Any) -> bytes:
    return bytes(encode_batch([(1_700_000_000_000, b"key", it, ()) for it in values], **kwargs))


@asynccontextmanager
async def started(place: Path, disk: OsDisk | None = None, **config: Any) -> AsyncIterator[Asking]:
    broker = Broker(BrokerConfig(advertised=ADVERTISED, **config), disk or OsDisk(), str(place))

    async def begin() -> None:
        await broker.start()
        await broker.enter()

    if isinstance(disk, HeldDisk):
        await disk.releasing(begin())
    else:
        await begin()
    try:
        yield Asking(broker)
    finally:
        if isinstance(disk, HeldDisk):
            disk.hold = False
            await disk.release()
        await broker.stop()
