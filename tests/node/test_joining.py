"""A newcomer and the cluster that it asks: a real server behind which a test answers."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sapwood.node import identity, joining
from sapwood.node.config import NodeConfig
from sapwood.node.identity import Identity
from sapwood.node.joining import join
from sapwood.node.layout import free_port
from sapwood.node.membership import Member, Newcomer, NoMembership
from sapwood.server import Listener, Request, Server
from sapwood.wire.apis import Api
from sapwood.wire.codec import Buffer, Struct, decode_request
from sapwood.wire.errors import ErrorCode
from sapwood.wire.frames import encode_response_frame

SECRET = bytes(range(32))
ACCEPTED = Struct(
    cluster_id="c" * 22,
    node_id=5,
    metadata_voters=[Struct(node=0, incarnation=0), Struct(node=1, incarnation=7)],
    members=[Struct(node_id=0, host="127.0.0.1", port=1), Struct(node_id=1, host="::1", port=2)],
)
LISTENERS = {"kafka": ("127.0.0.1", 9999)}


class Gatekeeper:
    """Stands for a cluster: notes who asks to join, and gives the answers of the test in turn."""

    def __init__(self, *answers: Struct) -> None:
        self.asked: list[Struct] = []
        self._answers = list(answers)

    def handle(self, request: Request) -> list[Buffer]:
        assert request.header.api_key == Api.JOIN
        self.asked.append(decode_request(Api.JOIN, 0, request.body, request.body_offset))
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return encode_response_frame(Api.JOIN, 0, request.header.correlation_id, answer)


@asynccontextmanager
async def cluster(keeper: Gatekeeper, port: int = 0) -> AsyncIterator[str]:
    listener = Listener("kafka", "127.0.0.1", port)
    server = Server(keeper.handle, [listener], secret=SECRET, node_id=0)
    await server.start()
    try:
        yield f"127.0.0.1:{server.addresses['kafka'][1]}"
    finally:
        await server.close(0)


def refused(code: ErrorCode, message: str) -> Struct:
    return Struct(error_code=int(code), error_message=message)


async def joined(
    directory: Path, *addresses: str, secret: bytes = SECRET, **more: object
) -> Member:
    config = NodeConfig(data_dir=str(directory), rack="cellar", **more)  # type: ignore[arg-type]
    newcomer = Newcomer(list(addresses), directory / "secret", secret)
    return await asyncio.wait_for(join(newcomer, config, directory, LISTENERS), 60)


def run(test: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(test())


def test_a_newcomer_is_told_who_it_is_and_writes_that_down(tmp_path: Path) -> None:
    keeper = Gatekeeper(ACCEPTED)

    async def test() -> None:
        async with cluster(keeper) as address:
            member = await joined(tmp_path, address)
        (asked,) = keeper.asked
        assert (asked.cluster_id, asked.node_id, asked.rack) == (None, -1, "cellar")
        assert [(it.name, it.host, it.port) for it in asked.listeners] == [
            ("kafka", "127.0.0.1", 9999)
        ]
        assert asked.incarnation > 0
        assert member.identity == identity.read(tmp_path)
        assert member.identity == Identity(
            cluster_id="c" * 22,
            node_id=5,
            incarnation=asked.incarnation,
            metadata_voters=((0, 0), (1, 7)),
            members={0: "127.0.0.1:1", 1: "[::1]:2"},
        )

    run(test)


def test_a_newcomer_may_ask_for_the_id_that_it_had(tmp_path: Path) -> None:
    keeper = Gatekeeper(ACCEPTED)

    async def test() -> None:
        async with cluster(keeper) as address:
            await joined(tmp_path, address, node_id=5)
            await joined(tmp_path, address, node_id=5)

    run(test)
    first, second = keeper.asked
    assert (first.node_id, second.node_id) == (5, 5)
    assert first.incarnation != second.incarnation


def test_a_newcomer_asks_others_if_one_does_not_answer(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster(Gatekeeper(ACCEPTED)) as address:
            member = await joined(tmp_path, f"127.0.0.1:{free_port()}", address)
        assert member.identity.node_id == 5

    run(test)


def test_a_newcomer_waits_for_a_cluster_that_is_only_being_started(tmp_path: Path) -> None:
    async def test() -> None:
        port = free_port()
        asking = asyncio.ensure_future(joined(tmp_path, f"127.0.0.1:{port}"))
        for _ in range(10):
            await asyncio.sleep(0)
        async with cluster(Gatekeeper(ACCEPTED), port):
            assert (await asking).identity.node_id == 5

    run(test)


def test_a_newcomer_asks_again_as_the_same_node_while_there_is_no_controller(
    tmp_path: Path,
) -> None:
    keeper = Gatekeeper(refused(ErrorCode.NOT_CONTROLLER, "nobody is in charge"), ACCEPTED)

    async def test() -> None:
        async with cluster(keeper) as address:
            await joined(tmp_path, address)

    run(test)
    first, second = keeper.asked
    assert first.incarnation == second.incarnation


def test_a_refusal_for_good_is_told_with_its_reason(tmp_path: Path) -> None:
    keeper = Gatekeeper(refused(ErrorCode.INVALID_REGISTRATION, "node 5 was removed"))

    async def test() -> None:
        async with cluster(keeper) as address:
            with pytest.raises(NoMembership, match="node 5 was removed"):
                await joined(tmp_path, address, node_id=5)

    run(test)
    assert identity.read(tmp_path) is None


def test_a_node_that_lost_its_data_waits_until_the_cluster_no_longer_takes_it_for_its_own_twin(
    tmp_path: Path,
) -> None:
    twin = refused(ErrorCode.DUPLICATE_BROKER_REGISTRATION, "node 5 is alive")
    keeper = Gatekeeper(twin, twin, ACCEPTED)

    async def test() -> None:
        async with cluster(keeper) as address:
            member = await joined(tmp_path, address, node_id=5)
            assert member.identity.node_id == 5

    run(test)
    assert len(keeper.asked) == 3


def test_a_twin_that_stays_alive_is_a_refusal_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "TWIN_S", 0.2)
    keeper = Gatekeeper(refused(ErrorCode.DUPLICATE_BROKER_REGISTRATION, "node 5 is alive"))

    async def test() -> None:
        async with cluster(keeper) as address:
            with pytest.raises(NoMembership, match="node 5 is alive"):
                await joined(tmp_path, address, node_id=5)

    run(test)
    assert identity.read(tmp_path) is None


def test_a_newcomer_with_another_secret_is_told_so_and_never_asks(tmp_path: Path) -> None:
    keeper = Gatekeeper(ACCEPTED)

    async def test() -> None:
        async with cluster(keeper) as address:
            with pytest.raises(NoMembership, match="secret"):
                await joined(tmp_path, address, secret=bytes(32))

    run(test)
    assert keeper.asked == []


def test_a_host_that_is_no_node_is_never_told_the_secret(tmp_path: Path) -> None:
    async def test() -> bytes:
        heard = b""
        with socket.create_server(("127.0.0.1", 0)) as stranger:
            stranger.setblocking(False)
            address = f"127.0.0.1:{stranger.getsockname()[1]}"
            asking = asyncio.ensure_future(joined(tmp_path, address))
            loop = asyncio.get_running_loop()
            connection, _ = await loop.sock_accept(stranger)
            with connection:
                heard = await loop.sock_recv(connection, 65536)
            asking.cancel()
        return heard

    heard = asyncio.run(test())
    assert heard
    assert SECRET not in heard
    assert SECRET.hex().encode() not in heard
