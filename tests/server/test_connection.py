"""One connection: order, pipelining, limits, back-pressure, and what ends it."""

import asyncio
import logging
import socket
import struct

import pytest

from sapwood.server import Limits, Request
from sapwood.wire.apis import Api
from sapwood.wire.codec import Buffer
from sapwood.wire.errors import MalformedMessage
from tests.server.peer import (
    Desk,
    Peer,
    Run,
    echo,
    only_connection,
    request_frame,
    response,
    serving,
    until,
)


def test_responses_leave_in_request_order_though_they_finish_in_reverse(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk()
        async with serving(desk) as server:
            peer = await Peer.connect(server)
            peer.send(b"".join(request_frame(number) for number in range(10)))
            await until(lambda: len(desk.requests) == 10)
            for number in reversed(range(10)):
                desk.answer(number)
                await asyncio.sleep(0)
            assert [(await peer.receive())[0] for _ in range(10)] == list(range(10))

    run(scenario())


def test_an_answer_that_is_ready_at_once_waits_for_an_earlier_one(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk()

        def handler(request: Request) -> object:
            return desk(request) if request.header.correlation_id == 0 else echo(request)

        async with serving(handler) as server:  # type: ignore[arg-type]
            peer = await Peer.connect(server)
            peer.send(request_frame(0) + request_frame(1, b"one") + request_frame(2, b"two"))
            await until(lambda: only_connection(server).outstanding == 3)
            desk.answer(0, b"zero")
            received = [await peer.receive() for _ in range(3)]
            assert received == [(0, b"zero"), (1, b"one"), (2, b"two")]

    run(scenario())


def test_a_request_without_a_response_leaves_no_gap(run: Run) -> None:
    async def scenario() -> None:
        async def nothing() -> None:
            return None

        def handler(request: Request) -> object:
            match request.header.correlation_id % 3:
                case 0:
                    return None
                case 1:
                    return nothing()
                case _:
                    return echo(request)

        async with serving(handler) as server:  # type: ignore[arg-type]
            peer = await Peer.connect(server)
            peer.send(b"".join(request_frame(number) for number in range(9)))
            assert [(await peer.receive())[0] for _ in range(3)] == [2, 5, 8]

    run(scenario())


def test_a_coroutine_may_answer(run: Run) -> None:
    async def scenario() -> None:
        async def handler(request: Request) -> list[Buffer]:
            await asyncio.sleep(0)
            return echo(request)

        async with serving(handler) as server:
            peer = await Peer.connect(server)
            assert await peer.ask(7, b"hello") == (7, b"hello")

    run(scenario())


def test_a_thousand_pipelined_requests_are_answered_in_order(run: Run) -> None:
    async def scenario() -> None:
        async with serving(echo) as server:
            peer = await Peer.connect(server)
            peer.send(b"".join(request_frame(n, b"x" * (n % 500)) for n in range(1000)))
            for number in range(1000):
                assert await peer.receive() == (number, b"x" * (number % 500))
            assert server.counters.requests_total == {3: 1000}

    run(scenario())


def test_a_request_sent_byte_by_byte_is_understood(run: Run) -> None:
    async def scenario() -> None:
        async with serving(echo) as server:
            peer = await Peer.connect(server)
            for byte in request_frame(1, b"slowly") + request_frame(2, b"again"):
                peer.send(bytes([byte]))
                await peer.writer.drain()
                await asyncio.sleep(0)
            assert await peer.receive() == (1, b"slowly")
            assert await peer.receive() == (2, b"again")

    run(scenario())


def test_a_large_request_and_its_large_answer_pass_whole(run: Run) -> None:
    async def scenario() -> None:
        body = bytes(range(256)) * 20_000
        async with serving(echo) as server:
            peer = await Peer.connect(server)
            assert await peer.ask(1, body) == (1, body)

    run(scenario())


def test_no_more_than_the_limit_of_requests_is_outstanding(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk()
        async with serving(desk, Limits(max_outstanding_requests=4)) as server:
            peer = await Peer.connect(server)
            peer.send(b"".join(request_frame(number) for number in range(20)))
            for number in range(20):
                await until(lambda number=number: len(desk.requests) == min(number + 4, 20))  # type: ignore[misc]
                assert only_connection(server).outstanding <= 4
                desk.answer(number)
                assert (await peer.receive())[0] == number

    run(scenario())


def test_no_more_than_the_limit_of_request_bytes_is_outstanding(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk()
        async with serving(desk, Limits(max_outstanding_bytes=100_000)) as server:
            peer = await Peer.connect(server)
            for number in range(6):
                peer.send(request_frame(number, bytes(60_000)))
            for number in range(6):
                await until(lambda number=number: len(desk.requests) == min(number + 2, 6))  # type: ignore[misc]
                desk.answer(number)
                assert (await peer.receive())[0] == number

    run(scenario())


def test_a_peer_that_never_reads_holds_no_more_than_the_high_water_mark_and_one_answer(
    run: Run,
) -> None:
    answer_bytes = 300_000

    async def scenario() -> None:
        handled = 0

        def handler(request: Request) -> list[Buffer]:
            nonlocal handled
            handled += 1
            return response(request, bytes(answer_bytes))

        async with serving(handler, Limits(write_high_water_bytes=1024 * 1024)) as server:
            peer = await Peer.connect(server)
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            peer.send(b"".join(request_frame(number) for number in range(2000)))
            await until(lambda: only_connection(server)._write_paused)
            turns = handled
            for _ in range(200):
                await asyncio.sleep(0)
            assert handled == turns
            unsent = only_connection(server)._transport.get_write_buffer_size()
            assert unsent <= 1024 * 1024 + answer_bytes + 8

            peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
            for number in range(2000):
                correlation_id, body = await peer.receive()
                assert (correlation_id, len(body)) == (number, answer_bytes)

    run(scenario())


def test_of_pipelined_fetches_only_the_one_whose_turn_it_is_is_being_answered(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk()
        async with serving(desk) as server:
            peer = await Peer.connect(server)
            fetches = [request_frame(number, api=Api.FETCH) for number in range(3)]
            peer.send(b"".join(fetches) + request_frame(3) + request_frame(4))
            await until(lambda: len(desk.requests) == 1)
            assert only_connection(server).outstanding == 1
            desk.answer(0)
            await until(lambda: len(desk.requests) == 2)
            assert only_connection(server).outstanding == 1
            desk.answer(1)
            await until(lambda: len(desk.requests) == 5)
            for number in (4, 3, 2):
                desk.answer(number)
            assert [(await peer.receive())[0] for _ in range(5)] == [0, 1, 2, 3, 4]

    run(scenario())


@pytest.mark.parametrize(
    "bad",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", 100 * 1024 * 1024 + 1),
        struct.pack(">i", 3) + b"abc",
        struct.pack(">ihhih", 10, 3, 0, 1, 30000),
    ],
    ids=["negative length", "largest length", "over the limit", "no header", "long client id"],
)
def test_bad_bytes_cost_their_sender_the_connection_and_nobody_else(run: Run, bad: bytes) -> None:
    async def scenario() -> None:
        async with serving(echo) as server:
            honest, liar = await Peer.connect(server), await Peer.connect(server)
            assert await liar.ask(1) == (1, b"")
            liar.send(bad + bytes(100_000))
            assert await liar.rest() == b""
            assert await honest.ask(2, b"still here") == (2, b"still here")
            assert server.counters.malformed_total == 1

    run(scenario())


def test_requests_before_a_malformed_one_are_still_answered(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk()
        async with serving(desk) as server:
            peer = await Peer.connect(server)
            peer.send(request_frame(1))
            await until(lambda: len(desk.requests) == 1)
            peer.send(struct.pack(">i", -5))
            await until(lambda: server.counters.malformed_total == 1)
            desk.answer(0, b"done")
            assert await peer.receive() == (1, b"done")
            assert await peer.rest() == b""

    run(scenario())


def test_a_handler_that_finds_a_request_malformed_ends_the_connection(run: Run) -> None:
    async def scenario() -> None:
        def at_once(request: Request) -> list[Buffer]:
            raise MalformedMessage("a count of -7")

        async def later(request: Request) -> list[Buffer]:
            raise MalformedMessage("a count of -7")

        for handler in (at_once, later):
            async with serving(handler) as server:
                peer = await Peer.connect(server)
                peer.send(request_frame(1))
                assert await peer.rest() == b""
                assert server.counters.malformed_total == 1
                assert server.counters.handler_errors_total == 0

    run(scenario())


def test_a_failing_handler_is_logged_and_counted_and_ends_one_connection(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async def later(request: Request) -> list[Buffer]:
            raise KeyError("later")

        def handler(request: Request) -> object:
            match request.header.correlation_id:
                case 1:
                    raise KeyError("at once")
                case 2:
                    return later(request)
                case _:
                    return echo(request)

        async with serving(handler) as server:  # type: ignore[arg-type]
            honest = await Peer.connect(server)
            for number in (1, 2):
                peer = await Peer.connect(server)
                peer.send(request_frame(0, b"before") + request_frame(number) + request_frame(3))
                assert await peer.receive() == (0, b"before")
                assert await peer.rest() == b""
            assert server.counters.handler_errors_total == 2
            assert await honest.ask(5) == (5, b"")

    with caplog.at_level(logging.ERROR, "sapwood.server"):
        run(scenario())
    texts = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert texts == ["'at once'", "'later'"]


def test_a_handler_may_answer_and_end_the_connection(run: Run) -> None:
    async def scenario() -> None:
        def handler(request: Request) -> list[Buffer]:
            request.connection.finish()
            return response(request, b"goodbye")

        async with serving(handler) as server:
            peer = await Peer.connect(server)
            peer.send(request_frame(1) + request_frame(2))
            assert await peer.receive() == (1, b"goodbye")
            assert await peer.rest() == b""

    run(scenario())


def test_a_handler_may_change_the_frame_limit_of_a_connection(run: Run) -> None:
    async def scenario() -> None:
        def handler(request: Request) -> list[Buffer]:
            request.connection.frame_limit = 5000
            return echo(request)

        async with serving(handler, Limits(max_frame_bytes=100)) as server:
            peer, other = await Peer.connect(server), await Peer.connect(server)
            assert await peer.ask(1) == (1, b"")
            assert await peer.ask(2, bytes(4000)) == (2, bytes(4000))
            other.send(request_frame(3, bytes(4000)))
            assert await other.rest() == b""

    run(scenario())


def test_a_handler_sees_who_asks_and_may_write_into_the_frame(run: Run) -> None:
    async def scenario() -> None:
        def handler(request: Request) -> list[Buffer]:
            request.body[request.body_offset] = ord("J")
            return echo(request)

        async with serving(handler) as server:
            peer = await Peer.connect(server)
            assert await peer.ask(1, b"jello") == (1, b"Jello")
            connection = only_connection(server)
            assert connection.peer == peer.writer.get_extra_info("sockname")
            assert (connection.listener, connection.principal) == ("kafka", None)

    run(scenario())


def test_a_peer_that_ends_its_side_still_gets_its_answers(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk()
        async with serving(desk, Limits(max_outstanding_requests=2)) as server:
            peer = await Peer.connect(server)
            peer.send(b"".join(request_frame(number) for number in range(4)))
            await until(lambda: len(desk.requests) == 2)
            peer.writer.write_eof()
            for number in range(4):
                await until(lambda number=number: len(desk.requests) > number)  # type: ignore[misc]
                desk.answer(number)
                assert (await peer.receive())[0] == number
            assert await peer.rest() == b""
            await until(lambda: not server.connections)

    run(scenario())


def test_answers_for_a_peer_that_has_gone_are_dropped(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk()
        async with serving(desk) as server:
            peer = await Peer.connect(server)
            peer.send(request_frame(1))
            await until(lambda: len(desk.requests) == 1)
            connection = only_connection(server)
            sock = peer.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset
            peer.writer.transport.abort()
            await until(lambda: not server.connections)
            assert connection.closed
            assert desk.futures[0].cancelled()

    run(scenario())


def test_small_answers_are_not_held_back_by_the_kernel(run: Run) -> None:
    async def scenario() -> None:
        async with serving(echo) as server:
            peer = await Peer.connect(server)
            await peer.ask(1)
            sock = only_connection(server)._transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    run(scenario())
