"""Every API and version that a node serves, fed with requests that chance made and then damaged.

Right by the schema or not, each gets an answer that can be decoded or the end of its connection.
No handler may fail in a way that nobody foresaw, a bystander never notices anything, and memory
stays bounded. Every run makes other requests; SEED=… makes those of an earlier one.
"""

import os
import random
import struct
import uuid
from collections.abc import Iterator

import pytest

import sapwood
from sapwood.server.gate import is_public
from sapwood.wire.apis import Api
from sapwood.wire.codec import decode_response
from sapwood.wire.frames import decode_response_header
from sapwood.wire.records import encode_batch
from tests.faults.bystander import Bystander
from tests.faults.raw import RequestMaker, Wire, has_schema, mutated, request
from tests.helpers import MIB, peak_resident_bytes, port_of
from tests.judges.confluent import Confluent

API_VERSIONS = 18
PRODUCE = 0
MOST_MEMORY = 400 * MIB

REQUESTS = 12  # of each version
DAMAGED_REQUESTS = 40

SEED = int(os.environ.get("SEED") or random.randrange(1 << 32))

GOOD_BATCH = bytes(encode_batch([(1_700_000_000_000, b"key", b"value", ())]))
LARGE_BATCH = bytes(encode_batch([(1_700_000_000_000, b"key", bytes(200_000), ())]))


class Victim:
    """The node that gets the rubbish, and the bystander on it."""

    def __init__(self, cluster: sapwood.Cluster) -> None:
        self.cluster = cluster
        self.port = port_of(cluster.bootstrap)
        self._log_read = 0
        self.bystander = Bystander(cluster.bootstrap)
        judge = Confluent(cluster.bootstrap)
        judge.create_topic("played-with", partitions=2)
        with Wire(self.port) as wire:
            answer = wire.ask(request(API_VERSIONS, 0, b""))
        if answer is None:
            raise RuntimeError("the node doesn't say what it serves")
        self.served = {
            it.api_key: range(it.min_version, it.max_version + 1)
            for it in decode_response(API_VERSIONS, 0, answer, 4).api_keys
            if is_public(it.api_key)
        }

    def unforeseen(self) -> str:
        """What the node's log says, since this was last asked, of failures that nobody foresaw."""
        log = self.cluster.log()
        new, self._log_read = log[self._log_read :], len(log)
        before, found, after = new.partition("Traceback")
        return before[-300:] + found + after[:3000] if found else ""


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    with sapwood.Cluster(data_dir=tmp_path_factory.mktemp("victim")) as cluster:
        victim = Victim(cluster)
        yield victim
        victim.bystander.finish()
        assert victim.bystander.errors == []
        assert victim.bystander.lost_nothing()
        assert peak_resident_bytes(cluster.pid()) < MOST_MEMORY
        assert cluster.stop() == 0


PROBE_ID = 123_456_789
PROBE = request(API_VERSIONS, 0, b"", PROBE_ID)

API_KEYS = [pytest.param(int(api), id=api.name) for api in Api]


def drawn(*what: object) -> random.Random:
    """Chance for one test, which shows the seed if it fails."""
    print(f"SEED={SEED}")
    return random.Random(f"{SEED} {what}")


def maker(chance: random.Random, acks: tuple[int, ...] = (-1, 1, 2)) -> RequestMaker:
    return RequestMaker(
        chance=chance,
        acks=acks,
        words=["played-with", "played-with", "new", "", "..", "no such", "x" * 300, "retention.ms"],
        blobs=[GOOD_BATCH, GOOD_BATCH, LARGE_BATCH, b"", b"rubbish", bytes(100)],
        ids=[bytes(16), uuid.UUID(int=1).bytes, b"\xff" * 16],
    )


def check_answer(answer: bytes, api: int, version: int) -> None:
    correlation_id, position = decode_response_header(api, version, memoryview(answer))
    assert correlation_id == 7
    decode_response(api, version, answer, position)


def is_answer_to_the_probe(answer: bytes) -> bool:
    return struct.unpack_from(">i", answer) == (PROBE_ID,)


@pytest.mark.parametrize("api", API_KEYS)
def test_requests_by_the_schema_get_an_answer_by_the_schema(victim: Victim, api: int) -> None:
    chance = drawn("by the schema", api)
    for version in victim.served.get(api, ()):
        if not has_schema(api, version):
            continue  # advertised for old clients' sake, and refused
        for _ in range(REQUESTS):
            frame = request(api, version, maker(chance).body(api, version))
            with Wire(victim.port) as wire:
                wire.send(frame + PROBE)
                answer = wire.receive()
                assert answer is not None, f"version {version}, {frame!r}"
                check_answer(answer, api, version)
                after = wire.receive()
                assert after is not None
                assert is_answer_to_the_probe(after)
    assert victim.unforeseen() == ""
    assert victim.bystander.is_undisturbed()


def test_produce_without_acknowledgement_gets_no_answer_and_at_an_error_the_end_of_the_connection(
    victim: Victim,
) -> None:
    """To close it is the only way to tell such a producer that something went wrong."""
    chance = drawn("without acknowledgement")
    for version in range(3, victim.served[PRODUCE].stop):
        for _ in range(REQUESTS):
            frame = request(PRODUCE, version, maker(chance, acks=(0,)).body(PRODUCE, version))
            with Wire(victim.port) as wire:
                wire.send(frame + PROBE)
                answer = wire.receive()
                assert answer is None or is_answer_to_the_probe(answer)
    assert victim.unforeseen() == ""
    assert victim.bystander.is_undisturbed()


@pytest.mark.parametrize("api", API_KEYS)
def test_damaged_requests_end_in_answers_or_the_end_of_the_connection(
    victim: Victim, api: int
) -> None:
    chance = drawn("damaged", api)
    for version in victim.served.get(api, ()):
        if not has_schema(api, version):
            continue
        for _ in range(DAMAGED_REQUESTS):
            frame = request(api, version, maker(chance, (-1, 0, 1)).body(api, version))
            with Wire(victim.port) as wire:
                wire.send(mutated(frame, chance) + PROBE)
                wire.finish()
                while wire.receive() is not None:
                    pass
    assert victim.unforeseen() == ""
    assert victim.bystander.is_undisturbed()


@pytest.mark.parametrize("api", API_KEYS)
def test_versions_that_are_not_served_end_the_connection(victim: Victim, api: int) -> None:
    served = victim.served.get(api, range(0))
    for version in {-1, served.start - 1, served.stop, 99} - {API_VERSIONS}:
        if api == API_VERSIONS or version in served:
            continue
        with Wire(victim.port) as wire:
            assert wire.ask(request(api, version, bytes(20))) is None
    assert victim.unforeseen() == ""


def test_pure_noise_ends_the_connection(victim: Victim) -> None:
    chance = drawn("noise")
    for _ in range(300):
        with Wire(victim.port) as wire:
            wire.send(chance.randbytes(chance.choice((1, 4, 10, 100, 5000))))
            wire.finish()
            while wire.receive() is not None:
                pass
    assert victim.unforeseen() == ""
    assert victim.bystander.is_undisturbed()


def test_a_hundred_announced_giants_that_never_come_cost_no_memory(victim: Victim) -> None:
    """Each says that 90 MiB will follow; memory grows with what arrives, not with what is said."""
    wires = [Wire(victim.port) for _ in range(100)]
    for wire in wires:
        wire.send(struct.pack(">ihh", 90 * MIB, PRODUCE, 9) + bytes(1000))
    assert victim.bystander.is_undisturbed()
    for wire in wires:
        wire.close()
    assert peak_resident_bytes(victim.cluster.pid()) < MOST_MEMORY
