"""What a client asks of an edge behind a fetch that waits is answered as things are then."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sapwood
from sapwood.client import KafkaClient
from sapwood.node.config import parse_address
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct, decode_response
from sapwood.wire.errors import ErrorCode
from sapwood.wire.frames import decode_response_header, encode_request_frame

FETCH_VERSION, EPOCH_VERSION = 12, 4
WAIT_MS = 20_000


class Wire:
    """Requests sent one behind the other, without waiting."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._file = connection.makefile("rb")
        self._asked: list[tuple[Api, int]] = []

    def ask(self, api: Api, version: int, message: Struct) -> None:
        number = len(self._asked)
        self._connection.sendall(
            b"".join(encode_request_frame(api, version, number, "order", message))
        )
        self._asked.append((api, version))

    def answer(self) -> Any:
        length = int.from_bytes(self._file.read(4), "big")
        frame = memoryview(self._file.read(length))
        api, version = self._asked[int.from_bytes(frame[:4], "big")]
        _, body = decode_response_header(api, version, frame)
        return decode_response(api, version, frame, body)


@contextmanager
def wire(address: str) -> Iterator[Wire]:
    with socket.create_connection(parse_address(address), 60) as connection:
        yield Wire(connection)


def test_an_epoch_ends_no_earlier_than_what_a_fetch_before_it_has_brought() -> None:
    with (
        sapwood.Cluster(edges=1, topics={"news": 1}) as cluster,
        KafkaClient(cluster.bootstrap) as publisher,
        wire(cluster.edge_address()) as asking,
    ):

        def publish() -> None:
            publisher.send("news", b"rain", partition=0)
            publisher.flush()

        publish()
        epoch = publisher.metadata(["news"]).topics["news"].partitions[0].leader_epoch
        asking.ask(Api.FETCH, FETCH_VERSION, fetch(0))
        (first,) = asking.answer().responses[0].partitions
        assert first.high_watermark == 1
        asking.ask(Api.FETCH, FETCH_VERSION, fetch(1))
        asking.ask(Api.OFFSET_FOR_LEADER_EPOCH, EPOCH_VERSION, end_of(epoch))
        with wire(cluster.edge_address()) as other:  # what was asked before it has gone up by then
            other.ask(Api.OFFSET_FOR_LEADER_EPOCH, EPOCH_VERSION, end_of(epoch))
            assert other.answer().topics[0].partitions[0].end_offset == 1
        publish()
        (second,) = asking.answer().responses[0].partitions
        assert second.records
        (end,) = asking.answer().topics[0].partitions
        assert (end.error_code, end.leader_epoch, end.end_offset) == (0, epoch, 2)


def test_records_of_a_new_leader_come_once_the_reader_has_heard_of_it(tmp_path: Path) -> None:
    """As at a leader. A client that got them first would hold them against where the epoch before
    ended, and think that the log was cut."""
    with sapwood.Cluster(data_dir=tmp_path, edges=1, topics={"news": 1}) as cluster:

        def publish() -> int:
            with KafkaClient(cluster.bootstrap) as publisher:
                publisher.send("news", b"rain", partition=0)
                publisher.flush()
                found = publisher.metadata(["news"]).topics["news"].partitions[0]
            return found.leader_epoch

        def answer(asking: Wire, offset: int, epoch: int) -> Any:
            asking.ask(Api.FETCH, FETCH_VERSION, fetch(offset, epoch))
            (found,) = asking.answer().responses[0].partitions
            return found

        with wire(cluster.edge_address()) as asking:
            old = publish()
            assert answer(asking, 0, old).records, "from here on it is cached"
            cluster.restart()
            asking.ask(Api.FETCH, FETCH_VERSION, fetch(1, old))
            new = publish()
            assert new > old
            (parked,) = asking.answer().responses[0].partitions
            assert parked.error_code == ErrorCode.FENCED_LEADER_EPOCH
            assert not parked.records
            assert answer(asking, 1, new).records
            assert answer(asking, 1, -1).records, "who doesn't say what it knows"


def fetch(offset: int, epoch: int = -1) -> Struct:
    wanted = Struct(
        partition=0,
        current_leader_epoch=epoch,
        fetch_offset=offset,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=1 << 20,
    )
    return Struct(
        replica_id=-1,
        max_wait=WAIT_MS,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[Struct(topic="news", partitions=[wanted])],
        forgotten_topics_data=[],
        rack_id="",
    )


def end_of(epoch: int) -> Struct:
    wanted = Struct(partition=0, current_leader_epoch=-1, leader_epoch=epoch)
    return Struct(replica_id=-1, topics=[Struct(topic="news", partitions=[wanted])])
