"""B6: write-ahead logging; what was acknowledged survives; the log can be read; nothing hangs."""

import asyncio
import random
import struct
import subprocess
import sys
from pathlib import Path

import sapwood
from sapwood.server.gate import FIRST_OWN_KEY, OWN_PUBLIC_KEYS
from sapwood.wire.apis import Api
from sapwood.wire.codec import decode_response
from sapwood.wire.records import encode_batch
from tests.faults.raw import RequestMaker, Wire, has_schema, request
from tests.helpers import port_of
from tests.judges.confluent import Confluent
from tests.judges.judge import same, sample

CLIENTS = 200
REQUESTS = 60
TIMEOUT_S = 30
PROBE_ID = 1_000_000
PROBE = request(Api.API_VERSIONS, 0, b"", PROBE_ID)


def test_b6_what_was_acknowledged_survives_a_kill_and_a_stop(cluster: sapwood.Cluster) -> None:
    judge = Confluent(cluster.bootstrap)
    messages = sample(100)
    judge.create_topic("b6", config={"retention.ms": "-1"})
    judge.produce("b6", messages[:50])
    cluster.kill()
    cluster.restart()
    judge.produce("b6", messages[50:])
    assert cluster.stop() == 0
    cluster.restart()
    assert same(messages, judge.consume("b6", 100))
    assert judge.config("b6")["retention.ms"] == "-1"


def test_b6_a_dump_of_the_log_is_readable_by_people(cluster: sapwood.Cluster) -> None:
    judge = Confluent(cluster.bootstrap)
    judge.create_topic("b6")
    judge.produce("b6", sample(3), codec="zstd")
    cluster.kill()
    (log,) = (cluster.data_dir / "node-0").glob("**/b6-0*")
    sapwood_command = str(Path(sys.executable).with_name("sapwood"))
    command = [sapwood_command, "log", "dump", "--records", str(log)]
    dump = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    for number in range(3):
        assert f"value {number}" in dump.stdout
        assert f"key {number}" in dump.stdout


def test_b6_two_hundred_clients_that_mix_every_request_all_get_their_answers(
    cluster: sapwood.Cluster,
) -> None:
    judge = Confluent(cluster.bootstrap)
    for number in range(4):
        judge.create_topic(f"b6-{number}", partitions=2)
    port = port_of(cluster.bootstrap)
    served = served_pairs(port)

    async def everybody() -> list[int]:
        return await asyncio.gather(*(one_client(port, n, served) for n in range(CLIENTS)))

    answered = asyncio.run(everybody())
    assert answered == [REQUESTS] * CLIENTS
    assert "Traceback" not in cluster.log()
    judge.produce("b6-after", sample(3))
    assert len(judge.consume("b6-after", 3)) == 3


def served_pairs(port: int) -> list[tuple[int, int]]:
    with Wire(port) as wire:
        answer = wire.ask(request(Api.API_VERSIONS, 0, b""))
    assert answer is not None
    return [
        (it.api_key, version)
        for it in decode_response(Api.API_VERSIONS, 0, answer, 4).api_keys
        for version in range(it.min_version, it.max_version + 1)
        if has_schema(it.api_key, version)
        # What needs the cluster's secret ends a stranger's connection, by right.
        and (it.api_key < FIRST_OWN_KEY or it.api_key in OWN_PUBLIC_KEYS)
    ]


async def one_client(port: int, number: int, served: list[tuple[int, int]]) -> int:
    """One request after the other, each with a time limit; how many were dealt with."""
    chance = random.Random(number)
    maker = RequestMaker(
        chance=chance,
        words=["b6-0", "b6-1", "b6-2", "b6-3", "b6-new", "retention.ms"],
        blobs=[bytes(encode_batch([(0, b"key", b"value", ())]))],
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    done = 0
    try:
        for _ in range(REQUESTS):
            api, version = chance.choice(served)
            frames = request(api, version, maker.body(api, version)) + PROBE
            async with asyncio.timeout(TIMEOUT_S):
                if not await is_dealt_with(reader, writer, frames):
                    # These clients share a few transactional ids: whoever was heard of over a newer
                    # connection is told to come again over a new one, and is heard there.
                    writer.close()
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    assert await is_dealt_with(reader, writer, frames), (api, version)
            done += 1
    finally:
        writer.close()
    return done


async def is_dealt_with(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frames: bytes
) -> bool:
    """Whether the request was answered, or the probe behind it; else the connection has gone."""
    writer.write(frames)
    is_answered = False
    while True:
        try:
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            (correlation_id,) = struct.unpack_from(">i", await reader.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError):
            return is_answered
        if correlation_id == PROBE_ID:
            return True
        is_answered = True
