"""One node asked by itself, over a connection of its own: for tools, which may wait for it."""

import os
import socket
from collections.abc import Iterable
from types import TracebackType

from sapwood.node.config import parse_address
from sapwood.security import NONCE_BYTES, AuthenticationFailed, ClientSide
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct, decode_response
from sapwood.wire.errors import ErrorCode, KafkaError, MalformedMessage
from sapwood.wire.frames import decode_response_header, encode_request_frame

TIMEOUT_S = 5.0
A_TOOL = -1
LARGEST_ANSWER_BYTES = 100 << 20
METADATA_VERSION = 12
FETCH_VERSION = 12
FETCH_BYTES = 64 * 1024
NO_TOPIC_ID = bytes(16)


class NoAnswer(Exception):
    """Nobody is there, or not in time; what was asked may have been done all the same."""


class NodeConnection:
    """With the cluster's secret it may ask what only nodes may."""

    def __init__(
        self, address: str, secret: bytes | None = None, *, timeout_s: float = TIMEOUT_S
    ) -> None:
        self._address = address
        self._last_id = 0
        try:
            self._socket = socket.create_connection(parse_address(address), timeout_s)
        except OSError as error:
            raise self._failed(error) from error
        try:
            if secret is not None:
                self._authenticate(secret)
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> "NodeConnection":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._socket.close()

    def status(self) -> Struct:
        """What the node says of itself and of the cluster."""
        return self._ask(Api.NODE_STATUS, Struct())

    def outbox(self) -> Struct:
        """What is in the outbox of an edge that has one."""
        return self._ask(Api.OUTBOX, Struct())

    def leader(self, topic: str, partition: int) -> tuple[int, int]:
        """The epoch and the leader of a partition as this node knows them; -1 if it doesn't."""
        wanted = Struct(
            topics=[Struct(topic_id=NO_TOPIC_ID, name=topic)],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        for found in self._ask(Api.METADATA, wanted, METADATA_VERSION).topics:
            for each in found.partitions:
                if each.partition_index == partition:
                    return each.leader_epoch, each.leader_id
        return -1, -1

    def has_more(self, topic: str, partition: int, offset: int, wait_ms: int) -> bool:
        """Whether this very node has committed records from the offset on, now or in that time."""
        wanted = Struct(
            partition=partition,
            current_leader_epoch=-1,
            fetch_offset=offset,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=FETCH_BYTES,
        )
        message = Struct(
            replica_id=-1,
            max_wait=wait_ms,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[Struct(topic=topic, partitions=[wanted])],
            forgotten_topics_data=[],
            rack_id="",
        )
        (found,) = self._ask(Api.FETCH, message, FETCH_VERSION).responses[0].partitions
        if found.error_code:
            code = ErrorCode(found.error_code)
            raise KafkaError(code, f"{self._address} can't be read from: {code.name}")
        return bool(found.records)

    def describe_replicas(self, topics: Iterable[str] | None = None) -> list[Struct]:
        """The node's own replicas, of all topics or of these."""
        wanted = None if topics is None else list(topics)
        found: list[Struct] = self._ask(Api.DESCRIBE_REPLICAS, Struct(topics=wanted)).groups
        return found

    def drain(self, node_id: int) -> None:
        """Begin to move everything off a node of the cluster; any node takes the request."""
        self._change(node_id, 1)

    def undrain(self, node_id: int) -> None:
        self._change(node_id, 2)

    def remove(self, node_id: int) -> None:
        """Take a node that holds nothing out of the cluster."""
        self._change(node_id, 3)

    def recover_partition(self, topic: str, partition: int) -> None:
        """Let this node go on alone with what it has of the partition."""
        _check(self._ask(Api.RECOVER_PARTITION, Struct(topic=topic, partition=partition)))

    def _change(self, node_id: int, action: int) -> None:
        _check(self._ask(Api.CHANGE_NODE, Struct(node_id=node_id, action=action)))

    def _authenticate(self, secret: bytes) -> None:
        side = ClientSide(secret, A_TOOL, os.urandom(NONCE_BYTES))
        try:
            challenge = self._ask(Api.AUTHENTICATE, side.hello())
            side.check(self._ask(Api.AUTHENTICATE, side.prove(challenge)))
        except AuthenticationFailed as error:
            raise NoAnswer(f"{self._address} doesn't take this secret: {error}") from error

    def _ask(self, api: Api, message: Struct, version: int = 0) -> Struct:
        self._last_id += 1
        try:
            frame = encode_request_frame(api, version, self._last_id, None, message)
            self._socket.sendall(b"".join(frame))
            length = int.from_bytes(self._receive(4), "big")
            if length > LARGEST_ANSWER_BYTES:
                raise MalformedMessage(f"an answer of {length} bytes")
            answer = memoryview(self._receive(length))
            _, body = decode_response_header(api, version, answer)
            return decode_response(api, version, answer, body)
        except (OSError, MalformedMessage) as error:
            raise self._failed(error) from error

    def _receive(self, length: int) -> bytearray:
        data = bytearray()
        while len(data) < length:
            more = self._socket.recv(min(length - len(data), 1 << 20))
            if not more:
                raise OSError("it closed the connection")
            data += more
        return data

    def _failed(self, error: Exception) -> NoAnswer:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return NoAnswer(f"{self._address}: {reason}")


def _check(answer: Struct) -> None:
    if answer.error_code:
        code = ErrorCode(answer.error_code)
        raise KafkaError(code, answer.error_message or code.name)
