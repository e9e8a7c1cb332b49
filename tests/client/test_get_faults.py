"""Durable subscribers whose connections break, whose node dies, and who die themselves."""

import asyncio
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import sapwood
from sapwood.client import KafkaClient, KafkaError, subscriber
from sapwood.client.admin import NewTopic
from tests.client.proxy import CuttingProxy, cut_off_node
from tests.helpers import eventually


def test_connections_cut_at_any_byte_cost_no_message_and_double_none(tmp_path: Path) -> None:
    """Commits whose answers are lost among them: by then the message is taken, or it isn't."""

    async def cut_now_and_then(proxy: CuttingProxy, done: asyncio.Event) -> None:
        step = 7
        while not done.is_set():
            if proxy.cut_after_bytes is None:
                step = step * 31 % 4_001
                proxy.cut_after_bytes = 900 + step
            await asyncio.sleep(0)

    async def get_all(client: sapwood.AsyncClient, found: list[int], wanted: int) -> None:
        while len(found) < wanted:
            try:
                messages = await client.get_many("t", 3, timeout=0.2)
            except KafkaError as error:
                assert error.code.retriable, error  # noqa: PT017
                continue
            found += [int(message.text) for message in messages]

    async def run() -> None:
        async with cut_off_node(tmp_path) as (_, proxy):
            small: dict[str, Any] = {
                "batch_bytes": 500,
                "fetch_partition_bytes": 1000,
                "backoff_ms": 1,
            }
            bootstrap = f"127.0.0.1:{proxy.port}"
            async with (
                sapwood.AsyncClient(bootstrap, id="alice", **small) as first,
                sapwood.AsyncClient(bootstrap, id="alice", **small) as second,
            ):
                await first.subscribe("t", start="earliest")
                await first.put_many("t", [str(number) for number in range(300)])
                done = asyncio.Event()
                cutter = asyncio.ensure_future(cut_now_and_then(proxy, done))
                found: list[int] = []
                getting = [get_all(first, found, 300), get_all(second, found, 300)]
                await asyncio.wait_for(asyncio.gather(*getting), 120)
                done.set()
                await cutter
                proxy.cut_after_bytes = None
                assert sorted(found) == list(range(300))
                assert proxy.cut_count > 20

    asyncio.run(run())


def test_a_commit_whose_answer_is_lost_is_found_out_about(tmp_path: Path) -> None:
    async def run() -> None:
        async with cut_off_node(tmp_path) as (_, proxy):
            bootstrap = f"127.0.0.1:{proxy.port}"
            async with sapwood.AsyncClient(bootstrap, id="alice", backoff_ms=1) as client:
                await client.subscribe("t", start="earliest")
                await client.put_many("t", [str(number) for number in range(30)])
                found: list[int] = []
                for _ in range(30):
                    getting = asyncio.ensure_future(client.get("t", 30))
                    if found and len(found) % 3 == 0:  # by then its connections are idle
                        proxy.swallowed.clear()
                        proxy.swallows_answers = True
                        await proxy.swallowed.wait()
                        proxy.swallows_answers = False
                        proxy.cut()
                    message = await getting
                    assert message is not None
                    found.append(int(message.text))
                assert found == list(range(30))
                assert await client.get("t", 0.2) is None

    asyncio.run(run())


def test_while_the_fate_of_a_commit_is_unknown_nothing_else_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A get that gives up, and the next one that does: the first one's message is still owed."""
    monkeypatch.setattr(subscriber, "_PATIENCE_MS", 50)

    async def run() -> None:
        async with cut_off_node(tmp_path) as (_, proxy):
            bootstrap = f"127.0.0.1:{proxy.port}"
            async with sapwood.AsyncClient(bootstrap, id="alice", backoff_ms=1) as client:
                await client.subscribe("t", start="earliest")
                await client.put_many("t", [str(number) for number in range(9)])
                found = [await client.get("t", 30)]  # now the others are fetched, too
                proxy.swallows_answers = True
                assert await client.get("t", 0) is None
                assert await client.get("t", 0) is None
                assert await client.get_many("t", 5, 0, ack="manual") == []
                proxy.swallows_answers = False
                proxy.cut()
                found += [await client.get("t", 30) for _ in range(8)]
                assert [int(each.text) for each in found if each] == list(range(9))

    asyncio.run(run())


def test_of_a_commit_that_one_partition_refuses_only_the_others_messages_are_got(
    tmp_path: Path,
) -> None:
    """The gaps of what was acknowledged in partition 0 don't fit into its position any more."""
    config = {"offset.metadata.max.bytes": "30"}
    with (
        sapwood.Cluster(config=config, data_dir=tmp_path) as cluster,
        sapwood.Client(cluster.bootstrap, id="alice") as alice,
        KafkaClient(cluster.bootstrap) as kafka,
    ):
        kafka.create_topics([NewTopic("t", 2, 1)])
        alice.subscribe("t", start="earliest")
        for number in range(10):
            kafka.send("t", f"{number}".encode(), partition=0)
        kafka.flush()
        lent = alice.get_many("t", 5, 10, ack="manual")
        lent[1].ack()
        lent[3].ack()
        for number in range(5):
            kafka.send("t", f"other {number}".encode(), partition=1)
        kafka.flush()
        for _ in range(5):
            alice.pending("t")  # meanwhile they arrive, behind what is left of partition 0
        found: list[str] = []
        while len(found) < 5:
            with suppress(KafkaError):  # there was nothing but partition 0's
                found += [message.text for message in alice.get_many("t", 100, 10)]
        assert found == [f"other {number}" for number in range(5)]
        with pytest.raises(KafkaError, match="OFFSET_METADATA_TOO_LARGE"):
            alice.get_many("t", 100, 10)


def test_a_batch_that_arrives_damaged_is_not_passed_over(tmp_path: Path) -> None:
    """What is behind it arrives, too, while what is before it is being taken."""

    async def get_on(reader: sapwood.AsyncClient, found: list[sapwood.Message]) -> None:
        while True:
            await reader.pending("t")  # meanwhile more arrives
            found += await reader.get_many("t", 3, 30)

    async def run() -> None:
        async with cut_off_node(tmp_path) as (_, proxy):
            bootstrap = f"127.0.0.1:{proxy.port}"
            async with sapwood.AsyncClient(bootstrap, id="alice", batch_bytes=500) as client:
                await client.subscribe("t", start="earliest")
                for number in range(20):
                    await client.put("t", f"message {number}.")
                proxy.rewritten = {b"message 8.": b"massage 8."}
                small: dict[str, Any] = {"fetch_partition_bytes": 200, "client_id": "small"}
                async with sapwood.AsyncClient(bootstrap, id="alice", **small) as reader:
                    found = await reader.get_many("t", 1, 30)
                    with pytest.raises(KafkaError, match="CORRUPT_MESSAGE"):
                        await get_on(reader, found)
                    proxy.rewritten = {}
                    while len(found) < 20:
                        found += await reader.get_many("t", 3, 30)
                    assert [it.text for it in found] == [f"message {n}." for n in range(20)]

    asyncio.run(run())


SUBSCRIBER = """
import sys
from sapwood import Client
with Client(sys.argv[1], id="alice") as client:
    for message in client.messages("t", ack=sys.argv[2]):
        print(message.text, flush=True)
        if sys.argv[2] == "manual":
            message.ack()
            print("done", message.text, flush=True)
"""


def run_until_killed(bootstrap: str, ack: str, lines: int) -> list[str]:
    """What a subscriber's process says before it is killed, in the middle of its work."""
    command = [sys.executable, "-c", SUBSCRIBER, bootstrap, ack]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = [process.stdout.readline().strip() for _ in range(lines)]
        process.kill()
        said += [line.strip() for line in process.stdout.read().splitlines()]
    return said


def get_up_to(last: int, client: sapwood.Client) -> list[int]:
    found: list[int] = []
    while last not in found:
        messages = eventually(lambda: client.get_many("t", timeout=1), 90)
        found += [int(message.text) for message in messages]
    return found


def test_a_subscriber_that_is_killed_again_and_again_never_sees_a_message_twice(
    cluster: sapwood.Cluster,
) -> None:
    with sapwood.Client(cluster.bootstrap, id="shop") as shop:
        alice = sapwood.Client(cluster.bootstrap, id="alice")
        alice.subscribe("t", start="earliest")
        shop.put_many("t", [str(number) for number in range(200)])
        seen: list[int] = []
        for lines in (5, 9, 2):
            seen += map(int, run_until_killed(cluster.bootstrap, "auto", lines))
        rest = get_up_to(199, alice)
        alice.close()
    assert seen + rest == sorted(set(seen + rest))
    # The window: what was taken, and the process died before it said so. At most one per death.
    assert len(seen + rest) >= 200 - 3


def test_what_a_killed_subscriber_did_not_acknowledge_comes_again(
    cluster: sapwood.Cluster,
) -> None:
    with sapwood.Client(cluster.bootstrap, id="alice") as alice:
        alice.subscribe("t", start="earliest")
        alice.put_many("t", [str(number) for number in range(60)])
        said: list[str] = []
        for lines in (6, 11):
            said += run_until_killed(cluster.bootstrap, "manual", lines)
        acknowledged = {int(each.split()[1]) for each in said if each.startswith("done")}
        rest = get_up_to(59, alice)
    seen = {int(each) for each in said if not each.startswith("done")}
    assert seen | set(rest) == set(range(60))
    assert acknowledged.isdisjoint(rest)


def test_a_subscription_survives_the_death_of_its_node(cluster: sapwood.Cluster) -> None:
    with sapwood.Client(cluster.bootstrap, id="alice") as alice:
        alice.subscribe("t", start="earliest")
        alice.put_many("t", [str(number) for number in range(20)])
        found = [message.text for message in alice.get_many("t", 8, 10)]
        cluster.kill()
        cluster.restart()
        while len(found) < 20:
            found += [message.text for message in alice.get_many("t", 5, 10)]
        assert found == [str(number) for number in range(20)]
        assert alice.get("t", 0.2) is None
