"""The network in memory, as protocols and streams see it."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from sim.network import Weather, ring, split
from sim.world import Machine, World

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1000):
            writer.write(data)
    writer.close()


class Pair:
    """A server and a client on hosts of their own."""

    def __init__(self, seed: int = 1, handler: Handler = echo) -> None:
        self.world = World(seed)
        self.server, self.client = self.world.machine("server"), self.world.machine("client")
        self.handler = handler
        self.start_server()

    def start_server(self) -> None:
        async def serve() -> None:
            await asyncio.start_server(self.handler, "server", 9)

        self.run(self.server, serve())

    def run(self, machine: Machine, work: Coroutine[Any, Any, Any], within_s: float = 300) -> Any:
        process = machine.process if machine.runs else machine.begin()
        assert process is not None
        task = process.spawn(work)
        self.world.loop.run_until(task.done, within_s=within_s)
        return task.result()

    def ask(self, work: Coroutine[Any, Any, Any], within_s: float = 300) -> Any:
        return self.run(self.client, work, within_s)


async def said_back(text: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("server", 9)
    writer.write(text)
    answer = await reader.readexactly(len(text))
    writer.close()
    return answer


def test_bytes_arrive_whole_and_in_order_however_they_are_cut() -> None:
    text = bytes(range(256)) * 4000
    for seed in range(3):
        pair = Pair(seed)
        pair.world.network.weather = Weather(cut_chance=0.6, loss=0.1, slow_chance=0.01)
        assert pair.ask(said_back(text)) == text


def test_a_reader_that_does_not_read_stops_its_writer() -> None:
    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(100)
        assert len(await reader.readexactly(5_000_000)) == 5_000_000
        writer.write(b"all")

    async def write() -> float:
        reader, writer = await asyncio.open_connection("server", 9)
        writer.write(bytes(5_000_000))
        await writer.drain()
        drained = asyncio.get_running_loop().time()
        assert await reader.read(3) == b"all"
        return drained

    pair = Pair(handler=hold)
    began = pair.world.loop.time()
    assert pair.ask(write()) - began > 99


def test_a_host_without_a_listener_refuses_and_one_without_power_is_silent() -> None:
    pair = Pair()
    pair.server.crash()
    with pytest.raises(ConnectionRefusedError):
        pair.ask(said_back(b"x"))
    pair.server.power_cut()
    began = pair.world.loop.time()
    with pytest.raises(TimeoutError):
        pair.ask(said_back(b"x"))
    assert pair.world.loop.time() - began > 100
    with pytest.raises(OSError, match="no host"):
        pair.ask(asyncio.open_connection("nowhere", 9))


def test_the_peer_of_a_process_that_dies_hears_of_it_but_not_of_a_power_cut() -> None:
    async def wait(how: Callable[[], None]) -> bytes:
        reader, writer = await asyncio.open_connection("server", 9)
        writer.write(b"x")
        await reader.readexactly(1)
        how()
        async with asyncio.timeout(10):
            return await reader.read(1)

    pair = Pair()
    assert pair.ask(wait(pair.server.crash)) == b""
    pair.start_server()
    with pytest.raises(TimeoutError):
        pair.ask(wait(pair.server.power_cut))


def test_a_machine_that_is_back_answers_old_connections_with_a_reset() -> None:
    async def talk() -> bytes:
        reader, writer = await asyncio.open_connection("server", 9)
        pair.server.power_cut()
        writer.write(b"into the dark")
        asyncio.get_running_loop().call_later(1.0, pair.server.begin)
        return await reader.read(1)

    pair = Pair()
    with pytest.raises(ConnectionResetError):
        pair.ask(talk())


def test_a_cut_link_holds_bytes_back_in_its_direction_only() -> None:
    async def ask_through_a_cut(source: str, target: str) -> float:
        reader, writer = await asyncio.open_connection("server", 9)
        loop = asyncio.get_running_loop()
        pair.world.network.cut(source, target)
        loop.call_later(7.0, pair.world.network.heal, 0.0)
        began = loop.time()
        writer.write(b"x")
        assert await reader.read(1) == b"x"
        return loop.time() - began

    pair = Pair()
    assert pair.ask(ask_through_a_cut("client", "server")) == pytest.approx(7.2, abs=0.3)
    assert pair.ask(ask_through_a_cut("server", "client")) == pytest.approx(7.2, abs=0.3)
    assert pair.ask(ask_through_a_cut("elsewhere", "client")) < 0.1


def test_connections_may_be_reset_when_a_cut_ends_and_at_any_other_time() -> None:
    async def talk(reset: Callable[[], None]) -> bytes:
        reader, writer = await asyncio.open_connection("server", 9)
        pair.world.network.cut("client", "server")
        writer.write(b"x")
        asyncio.get_running_loop().call_later(3.0, reset)
        return await reader.read(1)

    def reset_all() -> None:
        for end in pair.world.network.connections():
            pair.world.network.reset(end)

    pair = Pair()
    for way in (lambda: pair.world.network.heal(1.0), reset_all):
        with pytest.raises(ConnectionResetError):
            pair.ask(talk(way))


def test_bytes_for_a_paused_process_wait_for_it() -> None:
    pair = Pair()
    assert pair.server.process is not None
    pair.server.process.stall(20.0)
    began = pair.world.loop.time()
    assert pair.ask(said_back(b"hello")) == b"hello"
    assert pair.world.loop.time() - began >= 20


def test_latency_and_loss_slow_a_conversation_down() -> None:
    def seconds(weather: Weather) -> float:
        pair = Pair()
        pair.world.network.weather = weather
        began = pair.world.loop.time()
        for _ in range(20):
            pair.ask(said_back(b"x"))
        return pair.world.loop.time() - began

    calm = Weather(cut_chance=0)
    assert seconds(calm) < 0.1
    assert seconds(replace(calm, latency_s=0.1)) > 2
    assert seconds(replace(calm, loss=0.3)) > 2


def test_hosts_can_be_split_into_groups_and_into_a_ring() -> None:
    network = World(1).network

    def cuts() -> set[tuple[str, str]]:
        hosts = "abcde"
        return {(x, y) for x in hosts for y in hosts if network.link(x, y).is_cut}

    split(network, ["ab", "c"])
    assert cuts() == {("a", "c"), ("b", "c"), ("c", "a"), ("c", "b")}
    network.heal()
    assert cuts() == set()
    ring(network, "abcde")
    assert ("a", "c") in cuts()
    assert not {("a", "b"), ("e", "a")} & cuts()
