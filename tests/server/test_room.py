"""What all clients together send and don't finish takes no more memory than is allowed."""

import asyncio
import struct

from sapwood.server import Limits, Server
from tests.server.peer import Desk, Peer, Run, echo, request_frame, serving, until

MIB = 1 << 20
LENGTH_OF_90_MIB = struct.pack(">i", 90 * MIB)


def arrived_bytes(server: Server) -> int:
    """Of the frames that aren't whole; asked of those who hold them, not of those who count."""
    frames = (it._frames for it in server.connections if not it._finishing)
    return sum(it._frame_filled for it in frames if it._frame is not None)


def test_many_unfinished_frames_stay_within_bounds_and_keep_nobody_else_from_producing(
    run: Run,
) -> None:
    async def scenario() -> None:
        limits = Limits(max_held_bytes=50 * MIB, held_timeout_s=0.2)
        async with serving(echo, limits) as server:
            honest = await Peer.connect(server)
            others = [await Peer.connect(server) for _ in range(20)]
            for other in others:
                other.send(LENGTH_OF_90_MIB + bytes(10 * MIB))
            most, number = 0, 0
            async with asyncio.timeout(60):
                while server.counters.crowded_closed_total < 3:
                    number += 1
                    assert (await honest.ask(number, bytes(MIB)))[0] == number
                    most = max(most, arrived_bytes(server))
            assert most < 110 * MIB  # of the 200 that were sent
            assert honest.reader.at_eof() is False
            assert server.metrics()["sapwood_connections_crowded_closed_total"] >= 3
            for other in others:
                other.writer.transport.abort()
            await until(lambda: server.room.used_bytes == 0)
            assert not server.room.is_full

    run(scenario())


def test_who_holds_little_is_read_from_though_others_fill_the_room(run: Run) -> None:
    async def scenario() -> None:
        limits = Limits(max_held_bytes=4 * MIB, held_timeout_s=600)
        async with serving(echo, limits) as server:
            honest, other = await Peer.connect(server), await Peer.connect(server)
            other.send(LENGTH_OF_90_MIB + bytes(10 * MIB))
            await until(lambda: server.room.is_full)
            for number in range(20):
                assert (await honest.ask(number, bytes(MIB)))[0] == number
            assert server.room.is_full
            assert arrived_bytes(server) < 6 * MIB

    run(scenario())


def test_requests_that_wait_for_their_answers_count_and_are_never_given_up(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk()
        limits = Limits(max_held_bytes=MIB, held_timeout_s=0.05)
        async with serving(desk, limits) as server:
            waiting = [await Peer.connect(server) for _ in range(2)]
            for number, peer in enumerate(waiting):
                peer.send(request_frame(number, bytes(600_000 - 100_000 * number)))
                await until(lambda number=number: len(desk.requests) == number + 1)  # type: ignore[misc]
            assert server.room.is_full
            unfinished = await Peer.connect(server)
            unfinished.send(LENGTH_OF_90_MIB + bytes(MIB))
            assert await unfinished.rest() == b""
            assert server.counters.crowded_closed_total == 1
            for number, peer in enumerate(waiting):
                desk.answer(number)
                assert (await peer.receive())[0] == number
            await until(lambda: server.room.used_bytes == 0)
            assert not server.room.is_full

    run(scenario())
