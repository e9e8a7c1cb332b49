"""Addresses that may lead to other nodes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sapwood.node.hints import Places, follow
from sapwood.node.layout import free_port
from sapwood.server import Listener, Request, Server
from sapwood.wire.apis import Api
from sapwood.wire.codec import Buffer, Struct
from sapwood.wire.frames import encode_response_frame

SECRET = bytes(range(32))


@asynccontextmanager
async def node(node_id: int, port: int, secret: bytes = SECRET) -> AsyncIterator[None]:
    """A node that says who it is."""

    def handle(request: Request) -> list[Buffer]:
        answer = Struct(
            node_id=node_id,
            kind="core",
            pid=1,
            version="1",
            listeners=[],
            metrics=[],
            offline_partitions=[],
        )
        return encode_response_frame(Api.NODE_STATUS, 0, request.header.correlation_id, answer)

    server = Server(handle, [Listener("kafka", "127.0.0.1", port)], secret=secret, node_id=node_id)
    await server.start()
    try:
        yield
    finally:
        await server.close(0)


def test_whoever_answers_at_a_hint_is_learnt_of_also_if_it_comes_later() -> None:
    early, late, own = free_port(), free_port(), free_port()
    learnt: dict[int, tuple[str, int]] = {}
    first = asyncio.Event()

    def learn(node_id: int, address: tuple[str, int]) -> None:
        learnt[node_id] = address
        first.set()

    async def test() -> None:
        hints = [f"127.0.0.1:{port}" for port in (late, early, own)]
        async with node(1, early), node(0, own):
            following = asyncio.ensure_future(follow(hints, 0, SECRET, learn))
            await first.wait()
            assert learnt == {1: ("127.0.0.1", early)}
            async with node(2, late):
                await following
        assert learnt == {1: ("127.0.0.1", early), 2: ("127.0.0.1", late)}

    asyncio.run(test())


def test_a_stranger_is_not_learnt_of() -> None:
    strange, known = free_port(), free_port()
    learnt: list[int] = []

    async def test() -> None:
        done = asyncio.Event()

        def learn(node_id: int, address: tuple[str, int]) -> None:
            learnt.append(node_id)
            done.set()

        async with node(1, strange, secret=bytes(32)), node(2, known):
            hints = [f"127.0.0.1:{port}" for port in (strange, known)]
            following = asyncio.ensure_future(follow(hints, 0, SECRET, learn))
            await done.wait()
            following.cancel()

    asyncio.run(test())
    assert learnt == [2]


OLD, NEW, NEWER = ("127.0.0.1", 1), ("127.0.0.1", 2), ("127.0.0.1", 3)


def test_a_node_that_the_metadata_lacks_is_found_where_a_hint_says() -> None:
    places = Places({}, {})
    places.learn(1, NEW, lambda _: None)
    assert (places.members, places.routes) == ({1: NEW}, {})


def test_a_hint_goes_before_older_metadata_and_gives_way_to_newer() -> None:
    places = Places({}, {})
    metadata = {1: OLD, 2: OLD}
    places.learn(1, NEW, metadata.get)
    places.learn(2, OLD, metadata.get)
    places.review(metadata.get)
    assert places.routes == {1: NEW}
    metadata[1] = NEWER
    places.review(metadata.get)
    assert places.routes == {}


def test_a_route_that_was_set_goes_before_hints_and_metadata() -> None:
    places = Places({1: OLD}, {})
    places.learn(1, NEW, {1: NEWER}.get)
    places.review({1: NEW}.get)
    assert places.routes == {1: OLD}
