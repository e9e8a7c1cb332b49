"""The link to the parent: what is asked of it, and what becomes of that when it is lost."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import pytest

from sapwood.edge.uplink import Lost, Uplink
from sapwood.security import NONCE_BYTES, ClientSide
from sapwood.server import Listener, Request, Server
from sapwood.server.link import Link, open_link
from sapwood.wire.apis import Api
from sapwood.wire.codec import Buffer, Struct, decode_request
from sapwood.wire.frames import encode_response_frame
from tests.broker.asking import on_a_loop
from tests.helpers import eventually_on_loop

SECRET = b"s" * 32


class Parent:
    """Notes what it is asked, and answers it as it came unless it is told to keep silent."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.is_silent = False

    def handle(self, request: Request) -> list[Buffer] | Awaitable[list[Buffer] | None]:
        header = request.header
        message = decode_request(Api.RELAY, header.api_version, request.body, request.body_offset)
        self.asked.append(bytes(message.frame))
        if self.is_silent:
            return asyncio.get_running_loop().create_future()
        answer = Struct(frame=message.frame)
        return encode_response_frame(Api.RELAY, header.api_version, header.correlation_id, answer)


@asynccontextmanager
async def parents() -> AsyncIterator[tuple[Parent, Link]]:
    """A parent, and a link to it."""
    parent = Parent()
    server = Server(parent.handle, [Listener(port=0)], secret=SECRET, node_id=1)
    await server.start()
    link = Link("the parent", {})
    try:
        await open_link(
            link, ClientSide(SECRET, 10_000, bytes(NONCE_BYTES)), server.addresses["kafka"], 5
        )
        yield parent, link
    finally:
        link.part("the test is over")
        await server.close(0)


def ask(uplink: Uplink, frame: bytes, *, repeatable: bool = False) -> asyncio.Future[Struct]:
    return uplink.ask(Api.RELAY, Struct(frame=frame), timeout_s=30, repeatable=repeatable)


@on_a_loop
async def test_what_is_asked_before_there_is_a_parent_is_asked_then_in_its_order() -> None:
    uplink = Uplink()
    asked = [ask(uplink, b"%d" % it) for it in range(5)]
    async with parents() as (parent, link):
        uplink.use(link)
        assert [bytes((await it).frame) for it in asked] == [b"0", b"1", b"2", b"3", b"4"]
        assert parent.asked == [b"0", b"1", b"2", b"3", b"4"]
        uplink.close()


@on_a_loop
async def test_of_a_lost_parent_only_what_does_no_harm_is_asked_of_the_next() -> None:
    uplink = Uplink()
    async with parents() as (first, link), parents() as (second, other):
        first.is_silent = True
        uplink.use(link)
        read, write = ask(uplink, b"read", repeatable=True), ask(uplink, b"write")
        await eventually_on_loop(lambda: len(first.asked) == 2)
        link.part("it is lost")
        with pytest.raises(Lost):
            await write
        later = ask(uplink, b"later")
        uplink.use(other)
        assert bytes((await read).frame) == b"read"
        assert bytes((await later).frame) == b"later"
        assert sorted(second.asked) == [b"later", b"read"]
        uplink.close()


@on_a_loop
async def test_whom_nobody_waits_for_any_more_is_not_asked() -> None:
    uplink = Uplink()
    given_up, wanted = ask(uplink, b"given up"), ask(uplink, b"wanted")
    given_up.cancel()
    async with parents() as (parent, link):
        uplink.use(link)
        await wanted
        assert parent.asked == [b"wanted"]
        uplink.close()


@on_a_loop
async def test_the_end_is_told_to_all_who_wait() -> None:
    uplink = Uplink()
    asked = ask(uplink, b"never")
    uplink.close()
    with pytest.raises(Lost):
        await asked
