"""`python -m bench.listeners JOB`: many readers of one partition or subject, in one process.

Each has a connection of its own and does as little as it can: what is measured are the brokers. The
harness writes a line and gets one: `mark`, what all of them have got so far; `until N`, the same
once each has got N messages. The end of the input ends it.
"""

import asyncio
import json
import socket
import struct
import sys
import time
from collections.abc import Sequence
from typing import Any, Protocol

from bench.peers import LoadFailed
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.frames import encode_request_frame

FETCH_VERSION = 12
"""The last one that calls a topic by its name."""
MAX_WAIT_MS = 10_000
LOOK_S = 0.02
PATIENCE_S = 60.0
SENTINEL = 0x5A5A5A5A5A5A5A
OPENED_AT_ONCE = 32
NOWHERE = bytearray(1 << 20)
"""Sets how much is read at most; nothing is written to it."""


class Listener(Protocol):
    got: int
    is_open: bool

    async def open(self, port: int) -> None: ...


class KafkaListener(asyncio.Protocol):
    """Asks for what comes next, again and again. Requests and answers differ in few bytes only."""

    def __init__(self, topic: str) -> None:
        self.got = 0
        """Messages, and so the next offset: the topic was empty."""
        self.is_open = False
        partition = Struct(
            partition=0,
            current_leader_epoch=-1,
            fetch_offset=SENTINEL,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=1 << 20,
        )
        message = Struct(
            max_wait=MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[Struct(topic=topic, partitions=[partition])],
            forgotten_topics_data=[],
            rack_id="",
        )
        frame = encode_request_frame(Api.FETCH, FETCH_VERSION, 1, "bench", message)
        self._request = bytearray(b"".join(frame))
        self._offset_at = self._request.index(struct.pack(">q", SENTINEL))
        # Of the answer: length, correlation, tags, throttle, error, session, one topic's name.
        self._error_at = 4 + 4 + 1 + 4 + 2 + 4 + 1 + 1 + len(topic) + 1 + 4
        # Error, high watermark, stable and first offset, no aborted transactions, replica.
        self._records_at = self._error_at + 2 + 8 + 8 + 8 + 1 + 4
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    async def open(self, port: int) -> None:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_connection(lambda: self, "127.0.0.1", port)
        self.is_open = True
        self._ask()

    def _ask(self) -> None:
        if self._transport is not None:
            struct.pack_into(">q", self._request, self._offset_at, self.got)
            self._transport.write(bytes(self._request))

    def data_received(self, data: bytes) -> None:
        self._received += data
        received = self._received
        if len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4]):
            return
        (error,) = struct.unpack_from(">h", received, self._error_at)
        if error:
            raise LoadFailed(f"a reader was refused with error {error}")
        self._take(self._records_at)
        received.clear()
        self._ask()

    def _take(self, at: int) -> None:
        """Over the batches, to the last message of the last one."""
        received, size, shift = self._received, 0, 0
        while True:
            byte = received[at]
            size |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                break
        end = at + max(0, size - 1)
        while at < end:
            base, length = struct.unpack_from(">qi", received, at)
            (last,) = struct.unpack_from(">i", received, at + 23)
            self.got = base + last + 1
            at += 12 + length

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False


class NatsListener:
    """Subscribes and counts bytes, which never leave the kernel: all messages have one length."""

    def __init__(self, topic: str, size: int) -> None:
        self.got = 0
        self.is_open = False
        self._hello = f'CONNECT {{"verbose":false}}\r\nSUB {topic} 1\r\nPING\r\n'.encode()
        self._size = size
        self._bytes = self._bytes_per_message = 0
        self._start = b""

    async def open(self, port: int) -> None:
        loop = asyncio.get_running_loop()
        self._socket = socket.socket()
        self._socket.setblocking(False)
        await loop.sock_connect(self._socket, ("127.0.0.1", port))
        await loop.sock_sendall(self._socket, self._hello)
        heard = b""
        async with asyncio.timeout(PATIENCE_S):
            while b"PONG\r\n" not in heard:
                heard += await loop.sock_recv(self._socket, 1 << 16)
        self.is_open = True
        loop.add_reader(self._socket.fileno(), self._read)

    def _read(self) -> None:
        if self._bytes_per_message:
            count = self._socket.recv_into(NOWHERE, flags=socket.MSG_TRUNC)
        else:
            count = self._read_start()
        if not count:
            self.is_open = False
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
        self._bytes += count
        if self._bytes_per_message:
            self.got = self._bytes // self._bytes_per_message

    def _read_start(self) -> int:
        """The first line tells how long every message is; a PING may come before it."""
        data = self._socket.recv(1 << 16)
        self._start += data
        line = self._start.partition(b"MSG ")[2]
        if b"\r\n" in line:
            self._bytes_per_message = len("MSG ") + line.index(b"\r\n") + 2 + self._size + 2
        return len(data)


async def serve(listeners: Sequence[Listener], ports: Sequence[int]) -> None:
    for first in range(0, len(listeners), OPENED_AT_ONCE):
        some = range(first, min(first + OPENED_AT_ONCE, len(listeners)))
        await asyncio.gather(*(listeners[it].open(ports[it % len(ports)]) for it in some))
    say({"ready": len(listeners)})
    loop = asyncio.get_running_loop()
    while words := (await loop.run_in_executor(None, sys.stdin.readline)).split():
        if words[0] == "until":
            await until(listeners, int(words[1]))
        say({"messages": sum(it.got for it in listeners), "at": time.monotonic()})


async def until(listeners: Sequence[Listener], count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while min(it.got for it in listeners) < count:
        lost = sum(not it.is_open for it in listeners)
        if lost or time.monotonic() > deadline:
            behind = sum(it.got < count for it in listeners)
            raise LoadFailed(f"{behind} of {len(listeners)} lack messages; {lost} were cut off")
        await asyncio.sleep(LOOK_S)


def say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


def main() -> None:
    import uvloop

    job = json.loads(sys.argv[1])

    def listener() -> Listener:
        if job["dialect"] == "kafka":
            return KafkaListener(job["topic"])
        return NatsListener(job["topic"], job["size"])

    async def run() -> None:
        await serve([listener() for _ in range(job["count"])], job["ports"])

    uvloop.run(run())


if __name__ == "__main__":
    main()
