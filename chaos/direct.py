"""One node asked by itself: Kafka's requests over one connection, without a client's cleverness.

A client library finds the leader and hides who answered; here a node has to speak for itself,
also when it isn't the leader, or only believes that it still is.
"""

import socket
import struct
import time
from typing import NamedTuple

from sapwood.wire.apis import Api
from sapwood.wire.batch import read_header
from sapwood.wire.codec import Buffer, Struct, decode_response
from sapwood.wire.errors import ErrorCode, MalformedMessage
from sapwood.wire.frames import decode_response_header, encode_request_frame
from sapwood.wire.records import decode_batch, encode_batch

LATEST = -1
FETCH_BYTES = 1 << 20


class Refused(Exception):
    """The node's own answer was an error."""

    def __init__(self, code: int) -> None:
        names = {it.value: it.name for it in ErrorCode}
        super().__init__(names.get(code, f"error {code}"))
        self.code = code


class NoAnswer(Exception):
    """Nobody listens, the connection broke, or it took too long: what was asked may be done."""


class Fetched(NamedTuple):
    records: list[tuple[int, bytes | None]]
    next_offset: int


class Known(NamedTuple):
    leader: int
    """-1: nobody is known."""
    replicas: list[int]


class Direct:
    def __init__(self, address: str, timeout_s: float = 2.0) -> None:
        host, _, port = address.rpartition(":")
        self._address = (host, int(port))
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None
        self._correlation_id = 0

    def __enter__(self) -> "Direct":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def produce(self, topic: str, partition: int, value: bytes, acks: int = -1) -> int:
        """One record, sent once and never again; its offset."""
        records = encode_batch([(int(time.time() * 1000), None, value, ())])
        part = Struct(index=partition, records=bytes(records))
        message = Struct(
            transactional_id=None,
            acks=acks,
            timeout=int(self._timeout_s * 1000),
            topic_data=[Struct(name=topic, partition_data=[part])],
        )
        answer = self.ask(Api.PRODUCE, 9, message)
        (stored,) = answer.responses[0].partition_responses
        return int(_checked(stored).base_offset)

    def latest(self, topic: str, partition: int) -> int:
        """Where the partition ends for readers."""
        part = Struct(partition_index=partition, current_leader_epoch=-1, timestamp=LATEST)
        message = Struct(
            replica_id=-1, isolation_level=0, topics=[Struct(name=topic, partitions=[part])]
        )
        answer = self.ask(Api.LIST_OFFSETS, 6, message)
        (found,) = answer.topics[0].partitions
        return int(_checked(found).offset)

    def fetch(self, topic: str, partition: int, offset: int) -> Fetched:
        """Records from the offset on, as many as one answer holds; none at the end.

        A rack makes followers answer, too: "the closest replica".
        """
        part = Struct(
            partition=partition,
            current_leader_epoch=-1,
            fetch_offset=offset,
            log_start_offset=-1,
            partition_max_bytes=FETCH_BYTES,
        )
        message = Struct(
            replica_id=-1,
            max_wait=0,
            min_bytes=0,
            max_bytes=FETCH_BYTES,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[Struct(topic=topic, partitions=[part])],
            forgotten_topics_data=[],
            rack_id="nowhere",
        )
        answer = self.ask(Api.FETCH, 11, message)
        if answer.error_code:
            raise Refused(answer.error_code)
        (found,) = answer.responses[0].partitions
        return _read(_checked(found).records or b"", offset)

    def partitions(self, topics: list[str]) -> dict[tuple[str, int], Known]:
        """What this node knows of each partition."""
        message = Struct(
            topics=[Struct(topic_id=bytes(16), name=name) for name in topics],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        answer = self.ask(Api.METADATA, 12, message)
        return {
            (topic.name, part.partition_index): Known(part.leader_id, list(part.replica_nodes))
            for topic in answer.topics
            for part in topic.partitions
        }

    def ask(self, api: Api, version: int, message: Struct) -> Struct:
        self._correlation_id += 1
        frame = encode_request_frame(api, version, self._correlation_id, "chaos", message)
        try:
            connection = self._connected()
            connection.sendall(b"".join(frame))
            answer = memoryview(self._receive(connection))
            correlation_id, position = decode_response_header(api, version, answer)
            if correlation_id != self._correlation_id:
                raise NoAnswer(f"answer {correlation_id} to question {self._correlation_id}")
            return decode_response(api, version, answer, position)
        except (OSError, MalformedMessage) as error:
            self.close()
            raise NoAnswer(str(error) or type(error).__name__) from error
        except BaseException:
            self.close()
            raise

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._socket = socket.create_connection(self._address, self._timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._socket

    def _receive(self, connection: socket.socket) -> bytes:
        (size,) = struct.unpack(">i", self._exactly(connection, 4))
        return self._exactly(connection, size)

    @staticmethod
    def _exactly(connection: socket.socket, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            some = connection.recv(count - len(data))
            if not some:
                raise ConnectionError("the node closed the connection")
            data += some
        return bytes(data)


def _checked(part: Struct) -> Struct:
    if part.error_code:
        raise Refused(part.error_code)
    return part


def _read(data: Buffer, offset: int) -> Fetched:
    """Every record of whole batches, without those that control the log itself."""
    view = memoryview(data)
    position, next_offset = 0, offset
    records = []
    while position < len(view):
        header = read_header(view, position)
        if not header.is_control:
            found = decode_batch(view, position)
            records += [(it.offset, it.value) for it in found if it.offset >= offset]
        next_offset = max(next_offset, header.next_offset)
        position += header.size
    return Fetched(records, next_offset)
