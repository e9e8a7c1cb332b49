"""One end of an in-memory TCP connection, as asyncio's protocols see it.

Bytes leave in pieces, arrive later and in order, and wait while the reader doesn't read; a sender
that is too far ahead of its reader keeps the rest in its write buffer. An orderly close sends what
is left and then the end of the stream; an abort, a close over unread bytes, and bytes for somebody
who has gone, are answered with a reset.
"""

from __future__ import annotations

import asyncio
import contextvars
import enum
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from sim.loop import Process
    from sim.network import Host, Network

WINDOW_BYTES = 256 << 10
"""How much the kernels of both sides hold between writer and reader."""
PACKET_BYTES = 64 << 10
HIGH_WATER_BYTES = 64 << 10


class Signal(enum.Enum):
    END = "end"
    RESET = "reset"


Address = tuple[str, int]


class End(asyncio.Transport):
    peer: End

    def __init__(
        self, network: Network, host: Host, address: Address, peer_address: Address
    ) -> None:
        super().__init__({"sockname": address, "peername": peer_address, "socket": None})
        self.network = network
        self.host = host
        self.address = address
        self.process: Process | None = None
        self.incoming: deque[bytes | Signal] = deque()
        """On their way to this end."""
        self.clear_at = 0.0
        """When the last of them arrives."""
        self.vanished = False
        """Its machine lost its power: nobody was told."""
        self.lost = False
        self.unheard = False
        """Something that was sent has met a machine without power."""
        self._protocol: asyncio.BaseProtocol | None = None
        self._context: contextvars.Context | None = None
        self._inbox: deque[bytes | Signal] = deque()
        self._outbox: deque[bytes] = deque()
        self._outbox_bytes = 0
        self._in_flight_bytes = 0
        self._closing = False
        self._reading = True
        self._read_is_due = False
        self._high, self._low = HIGH_WATER_BYTES, HIGH_WATER_BYTES // 4
        self._writer_waits = False

    def __str__(self) -> str:
        return f"{self.address[0]}:{self.address[1]}→{self.peer.address[0]}:{self.peer.address[1]}"

    def attach(self, protocol: asyncio.BaseProtocol) -> None:
        """Within the process that owns this end."""
        self._protocol = protocol
        self._context = contextvars.copy_context()
        protocol.connection_made(self)
        if self._inbox:
            self._wake_reader()

    # -- from the network ----------------------------------------------------------------------

    def arrive(self) -> None:
        """The next packet is here."""
        packet = self.incoming.popleft()
        if self.vanished and not self.host.up:
            self.peer.unheard = True
        elif packet is Signal.RESET:
            self.lose(ConnectionResetError("reset by peer"))
        elif self.lost:
            if packet is not Signal.END and not self.peer.lost:
                self.send(Signal.RESET)
        else:
            self._inbox.append(packet)
            self._wake_reader()

    def lose(self, error: Exception | None) -> None:
        """The connection is over for this end."""
        if self.lost:
            return
        self.lost = self._closing = True
        self._inbox.clear()
        self._drop_outbox()
        self.network.forget(self)
        if self._protocol is not None and self._context is not None:
            loop = self.network.loop
            loop.call_soon(self._protocol.connection_lost, error, context=self._context)

    def orphan(self) -> None:
        """Its process has died: the kernel closes what it left open."""
        if not self.lost:
            self.lost = self._closing = True
            self.send(Signal.RESET if self._inbox else Signal.END)
            self._drop_outbox()
            self.network.forget(self)

    def vanish(self) -> None:
        self.vanished = self.lost = self._closing = True
        self._inbox.clear()
        self._drop_outbox()

    def send(self, packet: bytes | Signal) -> None:
        self.peer.incoming.append(packet)
        self.network.carry(self, self.peer)

    # -- reading -----------------------------------------------------------------------------

    def _wake_reader(self) -> None:
        if self._reading and not self._read_is_due and self._context is not None:
            self._read_is_due = True
            self.network.loop.call_soon(self._read, context=self._context)

    def _read(self) -> None:
        self._read_is_due = False
        if not self._reading or self._closing or not self._inbox:
            return
        protocol = self._protocol
        first = self._inbox[0]
        if isinstance(first, Signal):
            self._inbox.popleft()
            self._reading = False
            if not cast(asyncio.Protocol, protocol).eof_received():
                self.close()
            return
        if isinstance(protocol, asyncio.BufferedProtocol):
            count = self._fill(memoryview(cast(Any, protocol.get_buffer(-1))))
            protocol.buffer_updated(count)
        else:
            self._inbox.popleft()
            count = len(first)
            cast(asyncio.Protocol, protocol).data_received(first)
        if self._inbox:
            self._wake_reader()
        self.peer.acknowledge(count)

    def _fill(self, buffer: memoryview) -> int:
        count = 0
        while self._inbox and count < len(buffer):
            packet = self._inbox[0]
            if isinstance(packet, Signal):
                break
            taken = packet[: len(buffer) - count]
            buffer[count : count + len(taken)] = taken
            count += len(taken)
            if len(taken) == len(packet):
                self._inbox.popleft()
            else:
                self._inbox[0] = packet[len(taken) :]
        return count

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._closing:
            self._reading = True
            if self._inbox:
                self._wake_reader()

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    # -- writing -----------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if self._closing:
            return
        content = bytes(data)
        if content:
            self._outbox.append(content)
            self._outbox_bytes += len(content)
            self._push()
            if self._outbox_bytes > self._high and not self._writer_waits:
                self._writer_waits = True
                self._writing_protocol().pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        raise NotImplementedError("nobody here ends one side only")

    def can_write_eof(self) -> bool:
        return False

    def acknowledge(self, count: int) -> None:
        """The other side has read so many bytes."""
        self._in_flight_bytes -= count
        if self._outbox and not self.lost:
            self.network.call_after_delay(self.peer.host, self.host, self._push_more)

    def _push_more(self) -> None:
        self._push()
        if self._writer_waits and self._outbox_bytes <= self._low and not self.lost:
            self._writer_waits = False
            loop = self.network.loop
            loop.call_soon(self._writing_protocol().resume_writing, context=self._context)

    def _push(self) -> None:
        while self._outbox and self._in_flight_bytes < WINDOW_BYTES and not self.lost:
            content = self._outbox.popleft()
            size = self.network.piece_bytes(min(len(content), PACKET_BYTES))
            if size < len(content):
                self._outbox.appendleft(content[size:])
                content = content[:size]
            self._outbox_bytes -= size
            self._in_flight_bytes += size
            self.send(content)
        if self._closing and not self._outbox:
            self._finish_close()

    def _drop_outbox(self) -> None:
        self._outbox.clear()
        self._outbox_bytes = 0

    def _writing_protocol(self) -> asyncio.Protocol:
        return cast(asyncio.Protocol, self._protocol)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_WATER_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self._outbox_bytes

    # -- ending ------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            if not self._outbox:
                self._finish_close()

    def _finish_close(self) -> None:
        if not self.lost:
            self.send(Signal.RESET if self._inbox else Signal.END)
            self.lose(None)

    def abort(self) -> None:
        if not self.lost:
            self.send(Signal.RESET)
            self.lose(None)
