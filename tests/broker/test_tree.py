"""The tree at one core node: by word, by link, and what is told of it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sapwood.metadata.edges import FIRST_EDGE_ID
from sapwood.tree.wiring import encode_attach
from sapwood.tree.words import NOWHERE, Attach, Place, Refusal, Since
from sapwood.wire.apis import Api
from sapwood.wire.batch import iterate
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, MalformedMessage
from sapwood.wire.records import decode_batch
from tests.broker.asking import Asking, on_a_loop, started

FIRST = Place(FIRST_EDGE_ID, "e", 1)


class Tree(Asking):
    async def register(self, port: int, wish: str = "", edge_id: int = -1) -> Struct:
        message = Struct(edge_id=edge_id, host="e", port=port, ports=[], wish=wish)
        return await self.answer(Api.REGISTER_EDGE, 0, message)

    async def confirm(self, father: str, child: str) -> int:
        answer = await self.answer(Api.CONFIRM_EDGE, 0, Struct(father=father, child=child))
        return int(answer.error_code)

    async def down(self, reporter: str, node: str) -> int:
        answer = await self.answer(Api.REPORT_DOWN, 0, Struct(reporter=reporter, node=node))
        return int(answer.error_code)

    async def document(self) -> dict[str, Any]:
        answer = await self.answer(Api.DESCRIBE_TREE, 0, Struct())
        found: dict[str, Any] = json.loads(answer.document)
        return found

    async def names(self) -> list[int]:
        """Who hangs directly from the core node."""
        (core,) = (await self.document())["children"]
        return [it["id"] for it in core["children"]]

    async def until(self, *names: int) -> None:
        async with asyncio.timeout(20):
            while await self.names() != list(names):  # noqa: ASYNC110 - asks anew every time
                await asyncio.sleep(0)

    async def attach(self, number: int, child: Place = FIRST, **values: Any) -> Struct:
        self.peer.node = child.node_id
        attach = Attach(child, Since(1, 1), number, number > 1, NOWHERE, -1)._replace(**values)
        return await self.answer(Api.ATTACH, 0, encode_attach(attach))


@contextlib.asynccontextmanager
async def planted(place: Path) -> AsyncIterator[Tree]:
    async with started(place) as asking:
        yield Tree(asking.broker)


@on_a_loop
async def test_a_node_registers_is_confirmed_appears_and_is_erased_when_it_is_down(
    tmp_path: Path,
) -> None:
    async with planted(tmp_path) as it:
        answer = await it.register(1, wish="localhost:9092")
        assert (answer.edge_id, answer.father) == (FIRST_EDGE_ID, 0)
        assert (answer.host, answer.port) == ("localhost", 9092)
        assert await it.names() == []
        assert [each["state"] for each in (await it.document())["pending"]] == ["PENDING"]
        assert await it.confirm("0", "e:1") == 0
        assert await it.names() == [FIRST_EDGE_ID]
        assert await it.down("0", "e:1") == 0
        assert await it.names() == []
        assert it.broker.state.image.edges.known == {}


@on_a_loop
async def test_false_words_are_refused_clearly(tmp_path: Path) -> None:
    async with planted(tmp_path) as it:
        await it.register(1)
        assert await it.confirm("0", "stranger:1") == ErrorCode.RESOURCE_NOT_FOUND
        assert await it.confirm("stranger:1", "e:1") == ErrorCode.RESOURCE_NOT_FOUND
        assert await it.down("e:1", "0") == ErrorCode.INVALID_REQUEST
        assert (await it.register(2, wish="e:1")).error_code == 0
        answer = await it.register(3, wish="nobody:1")
        assert answer.error_code == ErrorCode.RESOURCE_NOT_FOUND
        assert "nobody:1" in answer.error_message
        assert answer.edge_id == -1


@on_a_loop
async def test_an_edge_that_attaches_is_confirmed_by_that_and_a_false_report_does_it_no_harm(
    tmp_path: Path,
) -> None:
    async with planted(tmp_path) as it:
        await it.register(1)
        first = await it.attach(1)
        assert first.refusal == 0
        assert first.depth == 0
        assert [each.node_id for each in first.ancestors] == [0]
        first = await it.attach(2)
        await it.until(FIRST_EDGE_ID)
        again = asyncio.create_task(it.attach(3, seen=first.version))
        assert await it.down("0", str(FIRST_EDGE_ID)) == 0
        beat = await again
        assert beat.beacon > first.beacon, "it is answered by the next beacon"
        await it.until(FIRST_EDGE_ID)


@on_a_loop
async def test_an_edge_whose_connection_ends_leaves_the_tree(tmp_path: Path) -> None:
    async with planted(tmp_path) as it:
        await it.register(1)
        await it.attach(1)
        first = await it.attach(2)
        await it.until(FIRST_EDGE_ID)
        waiting = asyncio.create_task(it.attach(3, seen=first.version))
        await asyncio.sleep(0)
        waiting.cancel()
        await it.until()
        assert (await it.attach(4)).refusal == Refusal.NOT_A_CHILD


@on_a_loop
async def test_one_that_attaches_another_than_itself_loses_its_connection(tmp_path: Path) -> None:
    async with planted(tmp_path) as it:
        it.peer.node = FIRST_EDGE_ID + 1
        attach = Attach(FIRST, Since(1, 1), 1, False, NOWHERE, -1)
        with pytest.raises(MalformedMessage, match="itself only"):
            await it.ask(Api.ATTACH, 0, encode_attach(attach))


@on_a_loop
async def test_every_change_of_the_tree_is_told_in_a_topic(tmp_path: Path) -> None:
    async with planted(tmp_path) as it:
        await it.register(1)
        await it.attach(1)
        await it.attach(2, healing_ms=70)
        await it.until(FIRST_EDGE_ID)
        await it.register(2)
        await it.down("0", str(FIRST_EDGE_ID))
        found: list[dict[str, Any]] = []
        async with asyncio.timeout(20):
            while not found or found[-1]["event"] != "erased":
                await asyncio.sleep(0)
                answer = await it.fetch("__sapwood_tree", len(found))
                if answer.error_code == 0 and answer.records:
                    found += [json.loads(each.value or b"") for each in decode_all(answer.records)]
        told = [(event["event"], event["node"]) for event in found]
        assert told == [
            ("registered", FIRST_EDGE_ID),
            ("attached", FIRST_EDGE_ID),
            ("registered", FIRST_EDGE_ID + 1),
            ("detached", FIRST_EDGE_ID),
            ("erased", FIRST_EDGE_ID),
        ]
        assert found[1]["healing_ms"] == 70
        assert found[1]["father"] == 0


def decode_all(records: Any) -> list[Any]:
    data = memoryview(bytes(records))
    return [record for at, _ in iterate(data) for record in decode_batch(data, at)]


@on_a_loop
async def test_the_tree_survives_a_restart(tmp_path: Path) -> None:
    async with planted(tmp_path) as it:
        await it.register(1)
        await it.confirm("0", "e:1")
    async with planted(tmp_path) as it:
        assert await it.names() == [FIRST_EDGE_ID]
        assert (await it.register(2)).edge_id == FIRST_EDGE_ID + 1
