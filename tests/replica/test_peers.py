"""Asking other nodes: answers in any order, who may ask, and answers that are none."""

import asyncio
import contextlib
import struct
from collections.abc import Callable
from typing import Any

import pytest

from sapwood.security import NONCE_BYTES, AuthenticationFailed
from sapwood.server import Request
from sapwood.wire.apis import Api
from sapwood.wire.codec import Buffer, Struct, decode_request
from sapwood.wire.frames import decode_request_header, encode_response_frame
from tests.replica.nodes import (
    A_MIB,
    PATIENCE_S,
    answer,
    asked,
    cluster,
    connections,
    echo,
    failure_of,
    forwarded,
    free_address,
)
from tests.server.peer import Desk, Run, until

# Asking


def test_a_node_asks_another_one_that_knows_who_asks(run: Run) -> None:
    async def scenario() -> None:
        def handler(request: Request) -> list[Buffer]:
            return answer(request, b"%d says " % (request.connection.node or 0) + asked(request))

        async with cluster() as nodes:
            server = await nodes.serve(handler)
            assert await nodes.ask(b"hello") == b"1 says hello"
            assert await nodes.ask(b"again") == b"1 says again"
            assert nodes.told == ["2 connected"]
            assert connections(server) == 1

    run(scenario())


def test_control_and_data_are_two_connections_and_both_are_kept(run: Run) -> None:
    async def scenario() -> None:
        async with cluster() as nodes:
            server = await nodes.serve(echo)
            for _ in range(3):
                await asyncio.gather(nodes.ask(b"control"), nodes.ask(b"data", data=True))
            assert connections(server) == 2
            assert nodes.told == ["2 connected"]

    run(scenario())


def test_answers_in_any_order_find_their_questions(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk()
        async with cluster() as nodes:
            await nodes.serve(desk)
            tasks = [nodes.asking(b"%d" % number) for number in range(100)]
            await until(lambda: len(desk.requests) == 100)
            for index in [*range(99, 50, -1), *range(51)]:
                request = desk.requests[index]
                desk.futures[index].set_result(answer(request, b"answer to " + asked(request)))
                await asyncio.sleep(0)
            answers = await asyncio.gather(*tasks)
            assert answers == [b"answer to %d" % number for number in range(100)]

    run(scenario())


def test_thousands_of_concurrent_requests_share_a_connection(run: Run) -> None:
    async def scenario() -> None:
        async def handler(request: Request) -> list[Buffer]:
            text = asked(request)
            for _ in range(int(text) % 7):
                await asyncio.sleep(0)
            return answer(request, text * 2)

        async with cluster() as nodes:
            server = await nodes.serve(handler)
            texts = [b"%d" % number for number in range(3000)]
            assert await asyncio.gather(*map(nodes.ask, texts)) == [text * 2 for text in texts]
            assert connections(server) == 1

    run(scenario())


def test_large_entries_arrive_as_views_that_stay_valid(run: Run) -> None:
    entries = [bytes([number]) * A_MIB for number in range(20)]

    async def scenario() -> None:
        def handler(request: Request) -> list[Buffer]:
            message = decode_request(Api.REPLICA_FETCH, 0, request.body, request.body_offset)
            group = Struct(
                topic_id=bytes(16),
                partition=0,
                epoch=1,
                leader=2,
                high_watermark=0,
                start_offset=0,
                entries=[entries[message.sequence], b"the end"],
            )
            response = Struct(hlc=1, session_id=message.session_id, groups=[group])
            return encode_response_frame(
                Api.REPLICA_FETCH, 0, request.header.correlation_id, response
            )

        async with cluster() as nodes:
            await nodes.serve(handler)
            fetches = [
                nodes.peers.request(
                    2,
                    Api.REPLICA_FETCH,
                    Struct(
                        hlc=1,
                        node_id=1,
                        session_id=1,
                        sequence=number,
                        groups=[],
                        max_bytes=A_MIB,
                        max_wait_ms=0,
                    ),
                    timeout_s=PATIENCE_S,
                    data=True,
                )
                for number in range(20)
            ]
            views = [fetched.groups[0].entries for fetched in await asyncio.gather(*fetches)]
        assert all(isinstance(view, memoryview) for view in views)
        assert views == [it + b"the end" for it in entries]

    run(scenario())


def test_a_request_that_is_cancelled_leaves_the_connection_to_the_others(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk()
        async with cluster() as nodes:
            server = await nodes.serve(desk)
            cancelled, other = nodes.asking(b"cancelled"), nodes.asking(b"other")
            await until(lambda: len(desk.requests) == 2)
            cancelled.cancel()
            for index in range(2):
                desk.futures[index].set_result(echo(desk.requests[index]))
            assert await other == b"other"
            assert cancelled.cancelled()
            assert connections(server) == 1

    run(scenario())


# Before ids are known


def test_whoever_is_at_an_address_can_be_asked_once(run: Run) -> None:
    async def scenario() -> None:
        async with cluster() as nodes:
            nodes.peers.node_id = -1
            server = await nodes.serve(
                lambda request: answer(request, str(request.connection.node).encode())
            )
            response = await nodes.peers.request_at(
                *nodes.addresses[2], Api.FORWARD, forwarded(b"?"), timeout_s=PATIENCE_S
            )
            assert bytes(response.frame) == b"-1"
            await until(lambda: not server.connections)
            assert nodes.told == []

    run(scenario())


def test_an_address_of_another_cluster_is_known_by_the_cause(run: Run) -> None:
    async def scenario() -> None:
        async with cluster(secret=b"another") as nodes:
            await nodes.serve(echo)
            question = nodes.peers.request_at(
                *nodes.addresses[2], Api.FORWARD, forwarded(b"?"), timeout_s=PATIENCE_S
            )
            assert isinstance((await failure_of(question)).__cause__, AuthenticationFailed)

    run(scenario())


def test_an_address_where_nobody_is_refuses(run: Run) -> None:
    async def scenario() -> None:
        async with cluster() as nodes:
            question = nodes.peers.request_at(
                *free_address(), Api.FORWARD, forwarded(b"?"), timeout_s=PATIENCE_S
            )
            assert (await failure_of(question)).refused

    run(scenario())


# Who may ask


def test_a_node_with_another_secret_is_refused_and_told_so(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk()
        async with cluster(secret=b"another") as nodes:
            server = await nodes.serve(desk)
            failure = await failure_of(nodes.ask(b"let me in"))
            assert "secret" in str(failure)
            assert not failure.refused
            assert nodes.told == ["2 lost"]
            assert server.counters.peer_refused_total == 1
            assert desk.requests == []

    run(scenario())


def test_a_node_at_another_ones_address_is_not_taken_for_it(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk()
        async with cluster() as nodes:
            await nodes.serve(desk, 2, node_id=3)
            assert "it is node 3, not node 2" in str(await failure_of(nodes.ask(b"vote for me")))
            assert desk.requests == []

    run(scenario())


# Answers that are none


class Impostor:
    """Speaks the protocol by hand: what it answers to each request is up to the test."""

    def __init__(self, reply: Callable[[int, Struct], list[bytes]]) -> None:
        self._reply = reply
        self._server: asyncio.Server
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> tuple[str, int]:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return host, port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = memoryview(await reader.readexactly(size))
                header, position = decode_request_header(frame)
                message = decode_request(Api.AUTHENTICATE, 0, frame, position)
                writer.writelines(self._reply(header.correlation_id, message))
        writer.close()

    async def close(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


def authentication(correlation_id: int, message: Struct) -> list[bytes]:
    parts = encode_response_frame(Api.AUTHENTICATE, 0, correlation_id, message)
    return [bytes(part) for part in parts]


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (
            lambda number, message: authentication(
                number, Struct(node_id=2, nonce=bytes(NONCE_BYTES), proof=message.proof)
            ),
            "doesn't know the cluster's secret",
        ),
        (lambda number, message: authentication(number, Struct(node_id=2)), "nonce"),
        (lambda number, message: authentication(number + 1, Struct()), "waits for none"),
        (lambda number, message: [b"HTTP/1.1 400 Bad Request\r\n\r\n"], "can't be understood"),
        (lambda number, message: [struct.pack(">ii", 4, number)], "can't be understood"),
    ],
    ids=["sends the proof back", "no nonce", "another request's", "not Kafka", "cut short"],
)
def test_whoever_only_pretends_to_be_a_node_gets_no_request(
    run: Run, reply: Callable[[int, Struct], list[bytes]], reason: str
) -> None:
    async def scenario() -> None:
        impostor = Impostor(reply)
        async with cluster() as nodes:
            nodes.addresses[2] = await impostor.start()
            try:
                assert reason in str(await failure_of(nodes.ask(b"a client's password")))
            finally:
                await impostor.close()

    run(scenario())


@pytest.mark.parametrize(
    "garbage",
    [
        lambda request: [struct.pack(">ii", 4, request.header.correlation_id)],
        lambda request: [struct.pack(">iib", 5, request.header.correlation_id, 0)],
        lambda request: [b"\x7f\xff\xff\xff"],
        lambda request: [struct.pack(">iib", 5, 12345, 0)],
        lambda request: [b"\0\0\0\x03abc"],
    ],
    ids=["no tags", "no body", "giant", "not asked for", "no header"],
)
def test_garbage_ends_the_connection_and_the_next_request_gets_a_new_one(
    run: Run, garbage: Callable[[Request], list[Buffer]]
) -> None:
    async def scenario() -> None:
        desk = Desk()

        def handler(request: Request) -> Any:
            match asked(request):
                case b"garbage":
                    return garbage(request)
                case b"wait":
                    return desk(request)
                case _:
                    return echo(request)

        async with cluster() as nodes:
            server = await nodes.serve(handler)
            assert await nodes.ask(b"first") == b"first"
            waiting = [nodes.asking(b"wait") for _ in range(5)]
            await until(lambda: len(desk.requests) == 5)
            for task in (nodes.asking(b"garbage"), *waiting):
                failure = await failure_of(task)
                assert "can't be understood" in str(failure)
                assert not failure.refused
            assert await nodes.ask(b"after") == b"after"
            assert connections(server) == 2

    run(scenario())
