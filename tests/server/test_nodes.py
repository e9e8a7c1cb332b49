"""Connections of nodes: how one shows that it is one, what that gives it, what strangers get."""

import asyncio
import logging
import struct

import pytest

from sapwood.security import NONCE_BYTES, AuthenticationFailed, ClientSide
from sapwood.server import Connection, Limits, Request, Server
from sapwood.server.gate import is_public
from sapwood.wire.apis import Api
from sapwood.wire.codec import Buffer, Struct, decode_response, encode_request
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

SECRET = b"known to nodes only"
PRIVATE = [api for api in Api if api != Api.AUTHENTICATE and not is_public(api)]


def private_frame(correlation_id: int, body: bytes = b"", api: Api = Api.FORWARD) -> bytes:
    return request_frame(correlation_id, b"\0" + body, api)  # no tags in its header


async def say(peer: Peer, message: Struct) -> Struct:
    body = b"".join(map(bytes, encode_request(Api.AUTHENTICATE, 0, message)))
    peer.send(private_frame(message.step, body, Api.AUTHENTICATE))
    correlation_id, answer = await peer.receive()
    assert correlation_id == message.step
    return decode_response(Api.AUTHENTICATE, 0, answer, 1)


async def authenticate(peer: Peer, node_id: int = 2, secret: bytes = SECRET) -> int:
    side = ClientSide(secret, node_id, bytes(NONCE_BYTES))
    return side.check(await say(peer, side.prove(await say(peer, side.hello()))))


async def node(server: Server, node_id: int = 2) -> tuple[Peer, Connection]:
    """A node that has shown that it is one, and the server's end of its connection."""
    before = set(server.connections)
    peer = await Peer.connect(server)
    await authenticate(peer, node_id)
    (connection,) = set(server.connections) - before
    return peer, connection


@pytest.mark.parametrize("node_id", [2, -1])
def test_whoever_knows_the_secret_is_served_as_a_node_or_a_tool(run: Run, node_id: int) -> None:
    async def scenario() -> None:
        def handler(request: Request) -> list[Buffer]:
            return response(request, b"%d" % (request.connection.node or 0))

        async with serving(handler, secret=SECRET, node_id=5) as server:
            peer = await Peer.connect(server)
            assert await authenticate(peer, node_id) == 5
            for api in PRIVATE:
                peer.send(private_frame(int(api), api=api))
                assert await peer.receive() == (api, b"%d" % node_id)
            peer.send(request_frame(3))
            assert await peer.receive() == (3, b"%d" % node_id)
            assert server.counters.peer_refused_total == 0

    run(scenario())


def test_the_server_tells_the_id_that_it_has_been_given_meanwhile(run: Run) -> None:
    async def scenario() -> None:
        async with serving(echo, secret=SECRET) as server:
            assert await authenticate(await Peer.connect(server)) == -1
            server.gate.node_id = 7
            assert await authenticate(await Peer.connect(server)) == 7

    run(scenario())


@pytest.mark.parametrize("secret", [SECRET, None])
def test_a_stranger_that_asks_as_nodes_do_is_refused_logged_and_counted(
    run: Run, secret: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        handled: list[int] = []

        def handler(request: Request) -> list[Buffer]:
            handled.append(request.header.api_key)
            return echo(request)

        async with serving(handler, secret=secret) as server:
            for count, api in enumerate([*PRIVATE, 20_500, 2**15 - 1], 1):
                stranger = await Peer.connect(server)
                _, port = stranger.writer.get_extra_info("sockname")
                header = struct.pack(">hhih", api, 0, 2, -1) + b"\0"
                asked = struct.pack(">i", len(header)) + header
                stranger.send(request_frame(1, b"hello") + asked + request_frame(3))
                assert await stranger.receive() == (1, b"hello")
                assert await stranger.rest() == b""
                assert server.metrics()["sapwood_peer_refused_total"] == count
                assert f"127.0.0.1:{port}" in caplog.messages[-1]
            assert set(handled) == {Api.METADATA}
            assert server.counters.malformed_total == 0

    with caplog.at_level(logging.WARNING, "sapwood.server"):
        run(scenario())


def test_the_status_of_a_node_is_for_everybody(run: Run) -> None:
    async def scenario() -> None:
        async with serving(echo, secret=SECRET) as server:
            peer = await Peer.connect(server)
            peer.send(private_frame(1, b"how are you", Api.NODE_STATUS))
            assert await peer.receive() == (1, b"how are you")

    run(scenario())


def test_a_wrong_secret_is_refused_with_a_reason_logged_and_counted(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        desk = Desk()
        async with serving(desk, secret=SECRET) as server:
            peer = await Peer.connect(server)
            with pytest.raises(AuthenticationFailed, match="secret"):
                await authenticate(peer, secret=b"a guess")
            peer.send(private_frame(9))
            assert await peer.rest() == b""
            assert server.metrics()["sapwood_peer_refused_total"] == 1
            assert desk.requests == []

    with caplog.at_level(logging.DEBUG, "sapwood.server"):
        run(scenario())
    assert any("127.0.0.1" in it and "node 2" in it for it in caplog.messages)
    assert SECRET.decode() not in caplog.text
    assert "a guess" not in caplog.text


def test_a_server_without_a_secret_recognizes_nobody(run: Run) -> None:
    async def scenario() -> None:
        async with serving(echo) as server:
            peer = await Peer.connect(server)
            with pytest.raises(AuthenticationFailed, match="no secret"):
                await authenticate(peer)
            assert await peer.rest() == b""
            assert server.counters.peer_refused_total == 1

    run(scenario())


def test_a_refusal_takes_its_time_and_holds_up_nobody_else(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sapwood.server.connection.REFUSAL_DELAY_S", 3600.0)

    async def scenario() -> None:
        async with serving(echo, secret=SECRET) as server:
            peer = await Peer.connect(server)
            guess = asyncio.ensure_future(authenticate(peer, secret=b"a guess"))
            await until(lambda: server.counters.peer_refused_total == 1)
            connection = only_connection(server)
            other = await Peer.connect(server)
            assert await other.ask(1, b"undisturbed") == (1, b"undisturbed")
            await authenticate(await Peer.connect(server))
            assert not guess.done()
            assert connection.outstanding == 1
            await server.close(grace_s=0)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await guess

    run(scenario())


def test_the_name_of_a_node_cannot_be_changed_afterwards(run: Run) -> None:
    async def scenario() -> None:
        async with serving(echo, secret=SECRET) as server:
            peer, _ = await node(server, 2)
            with pytest.raises(AuthenticationFailed, match="out of turn"):
                await authenticate(peer, 3)
            assert await peer.rest() == b""

    run(scenario())


def test_somebody_who_has_requests_outstanding_cannot_become_a_node(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk()
        async with serving(desk, secret=SECRET) as server:
            peer = await Peer.connect(server)
            peer.send(request_frame(0))
            await until(lambda: len(desk.requests) == 1)
            hello = ClientSide(SECRET, 2, bytes(NONCE_BYTES)).hello()
            body = b"".join(map(bytes, encode_request(Api.AUTHENTICATE, 0, hello)))
            peer.send(private_frame(1, body, Api.AUTHENTICATE))
            await until(lambda: server.counters.peer_refused_total == 1)
            desk.answer(0, b"still answered")
            assert await peer.receive() == (0, b"still answered")
            correlation_id, answer = await peer.receive()
            assert (correlation_id, decode_response(Api.AUTHENTICATE, 0, answer, 1).error_code) == (
                1,
                58,
            )
            assert await peer.rest() == b""

    run(scenario())


def test_a_malformed_authentication_ends_the_connection(run: Run) -> None:
    async def scenario() -> None:
        async with serving(echo, secret=SECRET) as server:
            for count, body in enumerate((b"", b"\0", bytes(20), b"\xff" * 50), 1):
                peer = await Peer.connect(server)
                peer.send(private_frame(1, body, Api.AUTHENTICATE))
                assert await peer.rest() == b""
                assert server.counters.malformed_total == count

    run(scenario())


def test_answers_to_a_node_leave_as_they_are_ready(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk()

        def handler(request: Request) -> object:
            return echo(request) if request.header.api_key == Api.ANNOUNCE else desk(request)

        async with serving(handler, secret=SECRET) as server:  # type: ignore[arg-type]
            peer, connection = await node(server)
            peer.send(b"".join(private_frame(number) for number in range(5)))
            await until(lambda: len(desk.requests) == 5)
            peer.send(private_frame(9, b"at once", Api.ANNOUNCE))
            assert await peer.receive() == (9, b"at once")
            for number in (3, 0, 4, 1, 2):
                desk.answer(number, b"%d" % number)
                assert await peer.receive() == (number, b"%d" % number)
            assert connection.outstanding == 0

    run(scenario())


def test_fetches_of_a_node_do_not_wait_for_each_other(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk()
        async with serving(desk, secret=SECRET) as server:
            peer, _ = await node(server)
            peer.send(b"".join(request_frame(number, api=Api.FETCH) for number in range(3)))
            await until(lambda: len(desk.requests) == 3)
            desk.answer(2)
            assert (await peer.receive())[0] == 2

    run(scenario())


def test_no_more_than_the_limit_of_a_nodes_requests_is_outstanding(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk()
        limits = Limits(max_outstanding_requests=1, max_outstanding_peer_requests=4)
        async with serving(desk, limits, secret=SECRET) as server:
            peer, connection = await node(server)
            peer.send(b"".join(private_frame(number) for number in range(10)))
            await until(lambda: len(desk.requests) == 4)
            for number in range(10):
                assert connection.outstanding <= 4
                desk.answer(number)
                assert (await peer.receive())[0] == number
                await until(lambda number=number: len(desk.requests) == min(number + 5, 10))  # type: ignore[misc]

    run(scenario())


def test_no_more_than_the_limit_of_a_nodes_request_bytes_is_outstanding(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk()
        async with serving(desk, Limits(max_outstanding_bytes=100_000), secret=SECRET) as server:
            peer, _ = await node(server)
            for number in range(6):
                peer.send(private_frame(number, bytes(60_000)))
            for number in range(6):
                await until(lambda number=number: len(desk.requests) == min(number + 2, 6))  # type: ignore[misc]
                desk.answer(number)
                assert (await peer.receive())[0] == number

    run(scenario())


def test_a_node_that_does_not_read_is_not_read_from(run: Run) -> None:
    async def scenario() -> None:
        handled = 0

        def handler(request: Request) -> list[Buffer]:
            nonlocal handled
            handled += 1
            return response(request, bytes(300_000))

        async with serving(handler, secret=SECRET) as server:
            peer, connection = await node(server)
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            peer.send(b"".join(private_frame(number) for number in range(500)))
            await until(lambda: connection._write_paused)
            turns = handled
            for _ in range(200):
                await asyncio.sleep(0)
            assert handled == turns < 500
            peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
            for number in range(500):
                assert (await peer.receive())[0] == number

    run(scenario())


def test_a_failing_handler_ends_a_nodes_connection_and_its_other_requests(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk()
        async with serving(desk, secret=SECRET) as server:
            peer, _ = await node(server)
            peer.send(b"".join(private_frame(number) for number in range(3)))
            await until(lambda: len(desk.requests) == 3)
            desk.futures[1].set_exception(KeyError("nobody foresaw it"))
            assert await peer.rest() == b""
            assert server.counters.handler_errors_total == 1
            assert desk.futures[0].cancelled()
            assert desk.futures[2].cancelled()

    run(scenario())


def test_nodes_do_not_count_as_connections_of_their_address(run: Run) -> None:
    async def scenario() -> None:
        async with serving(echo, Limits(max_connections_per_address=2), secret=SECRET) as server:
            nodes = [(await node(server, number))[0] for number in range(5)]
            assert not server._per_address
            clients = [await Peer.connect(server) for _ in range(2)]
            for client in clients:
                assert await client.ask(1) == (1, b"")
            assert await (await Peer.connect(server)).rest() == b""
            for peer in [*nodes, *clients]:
                await peer.close()
            await until(lambda: not server.connections)
            assert not server._per_address

    run(scenario())


def test_a_node_that_waits_for_an_answer_is_not_idle_and_one_that_does_not_is(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk()
        async with serving(desk, Limits(idle_timeout_s=0.4), secret=SECRET) as server:
            (waiting, _), (idle, _) = await node(server, 1), await node(server, 2)
            waiting.send(private_frame(1) + private_frame(2))
            assert await idle.rest() == b""
            desk.answer(1)
            assert (await waiting.receive())[0] == 2
            desk.answer(0)
            assert (await waiting.receive())[0] == 1

    run(scenario())


def test_a_node_that_ends_its_side_is_gone_and_its_requests_are_dropped(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk()
        async with serving(desk, secret=SECRET) as server:
            peer, _ = await node(server)
            peer.send(private_frame(1))
            await until(lambda: len(desk.requests) == 1)
            peer.writer.write_eof()
            assert await peer.rest() == b""
            await until(lambda: not server.connections)
            assert desk.futures[0].cancelled()

    run(scenario())


def test_a_graceful_close_answers_what_a_node_has_outstanding(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk()
        async with serving(desk, secret=SECRET) as server:
            peer, _ = await node(server)
            peer.send(private_frame(1) + private_frame(2))
            await until(lambda: len(desk.requests) == 2)
            closing = asyncio.ensure_future(server.close(grace_s=20))
            await asyncio.sleep(0)
            desk.answer(1)
            assert (await peer.receive())[0] == 2
            desk.answer(0)
            assert (await peer.receive())[0] == 1
            assert await peer.rest() == b""
            await closing

    run(scenario())


def test_the_secret_is_not_shown_when_a_server_is() -> None:
    async def scenario() -> None:
        server = Server(echo, [], secret=SECRET)
        assert SECRET.decode() not in repr(server) + repr(server.gate)

    asyncio.run(scenario())
