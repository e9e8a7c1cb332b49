"""What a gateway reads for listeners: it rests if there are none, and goes on after losses."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

import sapwood
from sapwood.client import ErrorCode, KafkaError
from sapwood.client.admin import NewTopic
from sapwood.gateway.cluster import Cluster
from sapwood.gateway.lines import feed
from sapwood.gateway.lines.feed import LOOK_S
from sapwood.gateway.tree import tell_events
from tests.broker.asking import on_a_loop
from tests.gateway.rest import Gateway, ok
from tests.gateway.talk import OK, TcpTalk
from tests.helpers import MIB, eventually, eventually_on_loop, resident_bytes, unique


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[sapwood.Cluster]:
    with sapwood.Cluster(data_dir=tmp_path) as cluster:
        yield cluster


def listen_and_leave(gateway: Gateway) -> None:
    with httpx.stream("GET", f"{gateway.url}/tree/events", timeout=30) as events:
        assert next(events.iter_lines()) == "event: tree"


def test_when_the_last_listener_leaves_the_gateway_is_at_rest_and_serves_on(bootstrap: str) -> None:
    with Gateway(bootstrap) as gateway:
        listen_and_leave(gateway)
        left_at = time.monotonic()
        eventually(lambda: time.monotonic() > left_at + LOOK_S + 1)  # by then it has looked
        ok(gateway.get("/livez"))
        listen_and_leave(gateway)


def test_a_gateway_whose_cluster_is_killed_stays_small_and_its_listeners_hear_on_when_it_is_back(
    cluster: sapwood.Cluster,
) -> None:
    topic, other = unique("feed"), unique("feed")
    with Gateway(cluster.bootstrap) as gateway, TcpTalk(gateway.ready["lines"]) as talk:
        assert talk.say("SUBSCRIBE", topic=topic) == OK
        assert talk.say("SEND", topic=topic, message="before") == OK
        assert talk.message()["message"] == "before"
        before = resident_bytes(gateway.process.pid)
        cluster.kill()
        assert talk.say("SEND", topic=topic, message="lost").startswith("[RESULT] ERROR")
        assert gateway.post("/topics", topic=other).status_code == 503
        ok(gateway.get("/livez"))
        assert resident_bytes(gateway.process.pid) < before + 64 * MIB
        cluster.restart()
        eventually(lambda: talk.say("SEND", topic=topic, message="after") == OK, 60)
        while talk.message()["message"] != "after":  # what was refused may have been stored
            pass


def test_a_topic_that_is_made_anew_is_heard_from_its_first_message_and_others_without_a_gap(
    cluster: sapwood.Cluster,
) -> None:
    mortal, steady = unique("mortal"), unique("steady")
    with Gateway(cluster.bootstrap) as gateway, TcpTalk(gateway.ready["lines"]) as talk:
        for topic in (mortal, steady):
            assert talk.say("SUBSCRIBE", topic=topic) == OK
        for number in range(5):
            assert talk.say("SEND", topic=mortal, message=str(number)) == OK
            assert talk.message()["message"] == str(number)
        assert gateway.delete("/topics", topic=mortal).status_code == 204
        ok(gateway.post("/topics", topic=mortal, partitions=1), 201)
        for number in range(20):
            gateway.produce(steady, str(number))
        gateway.produce(mortal, "anew")
        heard = [talk.message() for _ in range(21)]
        assert [it["message"] for it in heard if it["topic"] == mortal] == ["anew"]
        assert sorted(int(it["message"]) for it in heard if it["topic"] == steady) == list(
            range(20)
        )


@on_a_loop
async def test_who_is_gone_before_the_answer_begins_leaves_no_listener_behind(
    bootstrap: str,
) -> None:
    cluster = Cluster([bootstrap], None, None)
    try:
        await tell_events(cluster)  # an answer that nobody fetches
        assert not cluster.feed._listeners
    finally:
        await cluster.close()


@on_a_loop
async def test_who_comes_while_reading_begins_anew_costs_the_others_nothing(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "AGAIN_S", 3600.0)
    topic = unique("feed")
    cluster = Cluster([bootstrap], None, None)
    first: list[bytes | None] = []
    second: list[bytes | None] = []

    async def say(value: bytes) -> None:
        await (await cluster.talker.send(topic, value))

    try:
        await cluster.talker.create_topics([NewTopic(topic, 1)])
        await cluster.feed.listen(topic, feed.Listener(lambda it: first.append(it.value)))
        await say(b"1")
        await eventually_on_loop(lambda: first == [b"1"])
        lost = KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, "for a test")
        anew = asyncio.ensure_future(cluster.feed._begin_anew(lost))
        await eventually_on_loop(lambda: not cluster.feed._read)
        await say(b"2")
        await cluster.feed.listen(topic, feed.Listener(lambda it: second.append(it.value)))
        await say(b"3")
        await eventually_on_loop(lambda: b"3" in first and b"3" in second)
        anew.cancel()
    finally:
        await cluster.close()
    assert first == [b"1", b"2", b"3"]
    assert second == [b"3"]


PARENT = """
import sys
from tests.gateway.rest import Gateway
gateway = Gateway(sys.argv[1])
print(gateway.process.pid, gateway.url, flush=True)
sys.stdin.read()
"""


def test_a_gateway_goes_with_its_parent_even_if_that_one_is_killed(bootstrap: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, bootstrap], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    pid, url = parent.stdout.readline().decode().split()
    with httpx.stream("GET", f"{url}/tree/events", timeout=30) as events:
        assert next(events.iter_lines()) == "event: tree"
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    parent.stdin.close()
    parent.stdout.close()
    eventually(lambda: not psutil.pid_exists(int(pid)), 30)
