"""Many connections: listeners, caps, time limits, and the orderly end."""

import asyncio
import errno
import socket
import struct

import pytest

from sapwood.server import Limits, Listener, Request, Server
from sapwood.wire.codec import Buffer
from tests.server.peer import (
    ANY_PORT,
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


def test_several_listeners_serve_with_one_handler_and_know_their_names(run: Run) -> None:
    async def scenario() -> None:
        inside = Listener("inside", "127.0.0.1", 0)
        outside = Listener("outside", "127.0.0.1", 0, "broker.example.com", 19092)

        def handler(request: Request) -> list[Buffer]:
            return response(request, request.connection.listener.encode())

        async with serving(handler, None, inside, outside) as server:
            for name in ("inside", "outside"):
                peer = await Peer.connect(server, name)
                assert await peer.ask(1) == (1, name.encode())
            assert server.advertised() == {
                "inside": server.addresses["inside"],
                "outside": ("broker.example.com", 19092),
            }

    run(scenario())


def test_a_port_that_is_taken_is_named_and_nothing_stays_bound(run: Run) -> None:
    async def scenario() -> None:
        async with serving(echo) as server:
            taken = Listener("kafka", "127.0.0.1", server.addresses["kafka"][1])
            free = Listener("free", "127.0.0.1", 0)
            second = Server(echo, [free, taken])
            with pytest.raises(OSError, match=f"kafka.*127.0.0.1:{taken.port}") as caught:
                await second.start()
            assert caught.value.errno == errno.EADDRINUSE
            assert second.addresses == {}

    run(scenario())


def test_a_host_that_cannot_be_resolved_is_named(run: Run) -> None:
    async def scenario() -> None:
        server = Server(echo, [Listener("kafka", "no-such-host.invalid", 0)])
        with pytest.raises(OSError, match=r"no-such-host\.invalid"):
            await server.start()

    run(scenario())


def test_five_hundred_connections_are_served_side_by_side(run: Run) -> None:
    async def scenario() -> None:
        async with serving(echo) as server:
            peers = [await Peer.connect(server) for _ in range(500)]
            for number, peer in enumerate(peers):
                peer.send(request_frame(number, b"%d" % number))
            for number, peer in enumerate(peers):
                assert await peer.receive() == (number, b"%d" % number)
            assert len(server.connections) == 500
            for peer in peers:
                await peer.close()
            await until(lambda: not server.connections)
            assert not server._per_address

    run(scenario())


@pytest.mark.parametrize(
    "limits", [Limits(max_connections=3), Limits(max_connections_per_address=3)]
)
def test_connections_past_the_cap_are_closed_and_counted(run: Run, limits: Limits) -> None:
    async def scenario() -> None:
        async with serving(echo, limits) as server:
            peers = [await Peer.connect(server) for _ in range(3)]
            for peer in peers:
                await peer.ask(1)
            refused = await Peer.connect(server)
            assert await refused.rest() == b""
            assert server.counters.connections_refused_total == 1
            assert server.counters.connections_total == 3

            await peers[0].close()
            await until(lambda: len(server.connections) == 2)
            late = await Peer.connect(server)
            assert await late.ask(2, b"room again") == (2, b"room again")

    run(scenario())


def test_an_idle_connection_is_closed(run: Run) -> None:
    async def scenario() -> None:
        async with serving(echo, Limits(idle_timeout_s=0.4)) as server:
            peer = await Peer.connect(server)
            await peer.ask(1)
            assert await peer.rest() == b""
            assert server.counters.idle_closed_total == 1

    run(scenario())


def test_a_peer_that_waits_for_an_answer_is_not_idle(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk()
        async with serving(desk, Limits(idle_timeout_s=0.4)) as server:
            waiting, idle = await Peer.connect(server), await Peer.connect(server)
            waiting.send(request_frame(1))
            assert await idle.rest() == b""
            desk.answer(0)
            assert (await waiting.receive())[0] == 1

    run(scenario())


def test_a_peer_that_stops_reading_for_good_is_closed(run: Run) -> None:
    async def scenario() -> None:
        limits = Limits(idle_timeout_s=0.2)
        async with serving(echo, limits) as server:
            peer = await Peer.connect(server)
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            for number in range(10):
                peer.send(request_frame(number, bytes(3_000_000)))
            await until(lambda: server.counters.idle_closed_total == 1)
            await until(lambda: not server.connections)

    run(scenario())


def test_a_frame_that_takes_too_long_to_arrive_ends_its_connection(run: Run) -> None:
    async def scenario() -> None:
        async with serving(echo, Limits(frame_timeout_s=0.2)) as server:
            honest, slow = await Peer.connect(server), await Peer.connect(server)
            slow.send(request_frame(1, bytes(1000))[:-1])
            await slow.rest()
            assert server.counters.slow_closed_total == 1
            assert await honest.ask(3) == (3, b"")

    run(scenario())


def test_a_frame_that_arrives_steadily_may_take_longer_than_the_time_limit(run: Run) -> None:
    async def scenario() -> None:
        limits = Limits(frame_timeout_s=0.05, slowest_bytes_per_s=1000)
        async with serving(echo, limits) as server:
            steady, stalled = await Peer.connect(server), await Peer.connect(server)
            frame = request_frame(1, bytes(100_000))
            steady.send(frame[:50_000])
            stalled.send(frame[:5])
            assert await stalled.rest() == b""
            steady.send(frame[50_000:])
            assert (await steady.receive())[0] == 1
            assert server.counters.slow_closed_total == 1

    run(scenario())


def test_a_graceful_close_answers_what_is_outstanding_and_takes_nothing_new(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk()
        server = Server(desk, [ANY_PORT])
        await server.start()
        busy, idle = await Peer.connect(server), await Peer.connect(server)
        busy.send(request_frame(1) + request_frame(2))
        await until(lambda: len(desk.requests) == 2)

        closing = asyncio.ensure_future(server.close(grace_s=20))
        assert await idle.rest() == b""
        with pytest.raises(OSError):
            await Peer.connect(server)
        busy.send(request_frame(3))
        await asyncio.sleep(0)
        desk.answer(1, b"second")
        desk.answer(0, b"first")
        assert await busy.receive() == (1, b"first")
        assert await busy.receive() == (2, b"second")
        assert await busy.rest() == b""
        await closing
        assert len(desk.requests) == 2
        assert not server.connections

    run(scenario())


def test_a_close_cuts_off_what_is_not_answered_in_time(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk()
        server = Server(desk, [ANY_PORT])
        await server.start()
        peer = await Peer.connect(server)
        peer.send(request_frame(1))
        await until(lambda: len(desk.requests) == 1)
        await server.close(grace_s=0.05)
        assert await peer.rest() == b""
        assert not server.connections

    run(scenario())


def test_a_server_may_listen_again_at_once_where_another_has_just_closed(run: Run) -> None:
    async def scenario() -> None:
        async with serving(echo) as server:
            address = server.addresses["kafka"]
            peer = await Peer.connect(server)
            await peer.ask(1)
        async with serving(echo, None, Listener("kafka", *address)) as server:
            peer = await Peer.connect(server)
            assert await peer.ask(2) == (2, b"")

    run(scenario())


def test_bytes_and_requests_are_counted(run: Run) -> None:
    async def scenario() -> None:
        async with serving(echo) as server:
            peer = await Peer.connect(server)
            frame = request_frame(1, b"0123456789")
            peer.send(frame)
            await peer.receive()
            assert server.counters.received_bytes_total == len(frame)
            assert server.counters.sent_bytes_total == 18
            assert only_connection(server).outstanding == 0
            peer.send(struct.pack(">ihhih", 10, 19_999, 0, 2, -1))
            await peer.receive()
            metrics = server.metrics()
            assert metrics["sapwood_requests_metadata_total"] == 1
            assert metrics["sapwood_requests_unknown_total"] == 1
            assert metrics["sapwood_connections_total"] == 1

    run(scenario())


def test_every_address_of_a_host_is_listened_at_on_one_port(run: Run) -> None:
    async def scenario() -> None:
        async with serving(echo, None, Listener("kafka", "localhost", 0)) as server:
            port = server.addresses["kafka"][1]
            peer = Peer(*await asyncio.open_connection("127.0.0.1", port))
            assert await peer.ask(1) == (1, b"")
            families = {
                sock.family
                for listening in server._servers
                for sock in listening.sockets  # type: ignore[attr-defined]
            }
            assert socket.AF_INET in families

    run(scenario())
