"""A3: whatever arrives on a line's connection is answered clearly, and disturbs nobody else."""

import threading
from collections.abc import Callable, Iterator

import psutil
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.sync.client import connect

import sapwood
from tests.gateway.rest import Gateway, problem
from tests.gateway.talk import OK, Talk, TcpTalk, WebSocketTalk, error_in
from tests.helpers import MIB, eventually, resident_bytes, unique

FLOOD = "[HELP] {}\n" * 1_000
"""It makes 900 KB of answers of 10 KB of questions."""


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """In front of a cluster in which topics don't come by being named."""
    with (
        sapwood.Cluster(config={"auto.create.topics.enable": "false"}) as cluster,
        Gateway(cluster.bootstrap, node_id=0) as gateway,
    ):
        yield gateway


@pytest.fixture
def bystander(gateway: Gateway) -> Iterator[Talk]:
    """Who is served before and after."""
    topic = unique("calm")
    assert gateway.post("/topics", topic=topic, partitions=1).status_code == 201
    with TcpTalk(gateway.ready["lines"]) as talk:
        assert talk.say("SUBSCRIBE", topic=topic) == OK
        yield talk
        assert talk.say("SEND", topic=topic, message="still here") == OK
        assert talk.message()["message"] == "still here"


def test_a3_bytes_that_are_no_text_are_refused_and_not_guessed_at(
    gateway: Gateway, bystander: Talk
) -> None:
    with TcpTalk(gateway.ready["lines"]) as talk:
        talk.socket.sendall(b'[SEND] {"topic": "t", "message": "\xff\xfe"}\n')
        assert error_in(talk.answer()) == "INVALID_MESSAGE"
        assert talk.say("USER", name="ann") == OK
    with connect(f"ws://{gateway.ready['rest']}/ws") as socket:
        assert socket.recv() == OK
        socket.send(b'[USER] {"name": "ann"}')
        answers = [str(socket.recv())]
        while not answers[-1].startswith("[RESULT]"):  # it may be told of other things
            answers.append(str(socket.recv()))
        assert error_in(answers[-1]) == "INVALID_MESSAGE"
    with TcpTalk(gateway.ready["lines"]) as talk:
        nested = "[" * 100_000
        assert error_in(talk.say_line(f"[SEND] {nested}")) == "INVALID_MESSAGE"


def test_a3_a_message_that_is_too_long_for_a_websocket_ends_it_with_the_reason(
    gateway: Gateway, bystander: Talk
) -> None:
    with connect(f"ws://{gateway.ready['rest']}/ws") as socket:
        socket.send("[SEND] " + "x" * 3_000_000)
        with pytest.raises(ConnectionClosed) as ended:
            list(iter(socket.recv, None))
    assert ended.value.rcvd is not None
    assert ended.value.rcvd.code == CloseCode.MESSAGE_TOO_BIG


@pytest.mark.parametrize("way", [TcpTalk, WebSocketTalk])
def test_a3_a_topic_that_is_not_there_is_unknown_and_one_of_the_clusters_own_is_not_written_to(
    way: type[TcpTalk] | type[WebSocketTalk], gateway: Gateway, bystander: Talk
) -> None:
    unknown = "UNKNOWN_TOPIC_OR_PARTITION"
    with way(gateway.ready["lines" if way is TcpTalk else "rest"]) as talk:
        assert talk.say("USER", name="ann") == OK
        assert talk.error("SEND", topic="nowhere", message="m") == unknown
        assert talk.error("SUBSCRIBE", topic="nowhere") == unknown
        assert talk.error("SUBSCRIBE", topic="nowhere", durable=True) == unknown
        assert talk.error("UNSUBSCRIBE", topic="nowhere") == "NOT_SUBSCRIBED"
        known, offsets = unique("known"), "__consumer_offsets"
        assert gateway.post("/topics", topic=known, partitions=1).status_code == 201
        assert talk.say("SUBSCRIBE", topic=known, durable=True) == OK  # now there are offsets
        assert talk.error("SEND", topic=offsets, message="m") == "INVALID_TOPIC_EXCEPTION"
    assert "nowhere" in problem(gateway.get("/pending", topic="nowhere"), 404)


@pytest.mark.parametrize("way", ["tcp", "websocket"])
def test_a3_who_asks_and_does_not_read_the_answers_is_not_asked_for_more_questions(
    way: str, gateway: Gateway, bystander: Talk
) -> None:
    process = psutil.Process(gateway.process.pid)
    before = resident_bytes(gateway.process.pid)
    if way == "tcp":
        deaf: Talk = TcpTalk(gateway.ready["lines"])
    else:
        deaf = WebSocketTalk(gateway.ready["rest"])
    flood = threading.Thread(target=_ask_on, args=(deaf,), daemon=True)
    flood.start()
    eventually(_rests(process), 60, every_s=0.5)
    assert resident_bytes(gateway.process.pid) < before + 64 * MIB
    assert bystander.say("USER", name="calm") == OK
    deaf.close()
    flood.join(60)


def _ask_on(talk: Talk) -> None:
    try:
        for _ in range(150):
            talk.write(FLOOD)
    except (OSError, ConnectionClosed):
        pass  # it was let go, or is closed


def _rests(process: psutil.Process) -> Callable[[], bool]:
    """Whether it has done nothing since the last look, after it has done something."""
    seen: list[float] = []

    def look() -> bool:
        times = process.cpu_times()
        seen.append(times.user + times.system)
        return seen[-1] > seen[0] + 0.1 and seen[-1] < seen[-2] + 0.05

    return look
