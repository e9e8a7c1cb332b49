"""Links between nodes that can be cut and slowed down: for tests, in a process of its own.

Every ordered pair of nodes (a, b) has a port here; a reaches b through it. A cut link loses
nothing and refuses nothing: as with a pulled cable, bytes stop, ends of connections aren't heard
of, and new connections hang. What waited goes on its way when the link is healed.

The process takes one JSON command per line on stdin and answers each with a line on stdout. It
ends when stdin does, so it never outlives whoever started it.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable
from typing import Any

Pair = tuple[int, int]

HOST = "127.0.0.1"
CHUNK_BYTES = 64 << 10
# On the way at once, in each direction of a connection.
MOST_CHUNKS = 256


class Links:
    """The handle on such a process."""

    def __init__(self) -> None:
        command = [sys.executable, "-P", "-m", "sapwood.node.links"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self._lock = threading.Lock()

    def open(self, nodes: Iterable[int]) -> dict[Pair, str]:
        """The address through which each of the nodes is to reach each other one."""
        found = self._ask("open", nodes=list(nodes))
        return {(a, b): f"{HOST}:{port}" for a, b, port in found}

    def open_from(self, node: int, others: Iterable[int]) -> dict[int, str]:
        """The address through which one more is to reach each of these, who never seek it."""
        found = self._ask("open", nodes=[node], others=list(others))
        return {b: f"{HOST}:{port}" for _, b, port in found}

    def place(self, node: int, address: str) -> None:
        """Say where a node really is."""
        self._ask("place", node=node, address=address)

    def cut(self, ways: Iterable[Pair]) -> None:
        """What a sends no longer reaches b, for each (a, b)."""
        self._ask("cut", ways=list(ways))

    def delay(self, ways: Iterable[Pair], delay_ms: float) -> None:
        """What a sends reaches b so much later, for each (a, b)."""
        self._ask("delay", ways=list(ways), delay_ms=delay_ms)

    def heal(self, ways: Iterable[Pair] | None = None) -> None:
        """These ways, or all, are neither cut nor slow any more."""
        self._ask("heal", ways=None if ways is None else list(ways))

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process.wait()

    def _ask(self, do: str, **details: Any) -> Any:
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise RuntimeError("the process of the links has no pipes")
        with self._lock:
            stdin.write(json.dumps({"do": do, **details}).encode() + b"\n")
            stdin.flush()
            line = stdout.readline()
        if not line:
            raise RuntimeError("the process of the links has ended")
        return json.loads(line)


class Way:
    """What goes from one node to another, whoever of them opened the connection."""

    def __init__(self) -> None:
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.delay_s = 0.0


class Switchboard:
    def __init__(self) -> None:
        self._ways: dict[Pair, Way] = {}
        self._places: dict[int, tuple[str, int]] = {}
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()

    async def obey(self, command: dict[str, Any]) -> Any:
        match command.pop("do"):
            case "open":
                return await self._open(**command)
            case "place":
                host, _, port = command["address"].rpartition(":")
                self._places[command["node"]] = (host.strip("[]"), int(port))
            case "cut":
                for pair in command["ways"]:
                    self._way(*pair).is_open.clear()
            case "delay":
                for pair in command["ways"]:
                    self._way(*pair).delay_s = command["delay_ms"] / 1000
            case "heal":
                healed = command["ways"]
                for pair in self._ways if healed is None else healed:
                    way = self._way(*pair)
                    way.is_open.set()
                    way.delay_s = 0.0
        return None

    async def _open(
        self, nodes: list[int], others: list[int] | None = None
    ) -> list[tuple[int, int, int]]:
        pairs = [(a, b) for a in nodes for b in others or nodes if a != b]
        return [(a, b, await self._listen(a, b)) for a, b in pairs]

    async def _listen(self, a: int, b: int) -> int:
        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._connect(a, b, reader, writer))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

        server = await asyncio.start_server(accepted, HOST, 0)
        self._servers.append(server)
        port: int = server.sockets[0].getsockname()[1]
        return port

    def _way(self, a: int, b: int) -> Way:
        return self._ways.setdefault((a, b), Way())

    async def _connect(
        self, a: int, b: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        there, back = self._way(a, b), self._way(b, a)
        try:
            # A connection needs both ways to come about.
            while not (there.is_open.is_set() and back.is_open.is_set()):
                await there.is_open.wait()
                await back.is_open.wait()
            up_reader, up_writer = await asyncio.open_connection(*self._places[b])
        except (OSError, KeyError):
            writer.transport.abort()
            return
        await asyncio.gather(
            carry(reader, up_writer, there), carry(up_reader, writer, back), return_exceptions=True
        )


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way) -> None:
    """All that comes, the end of it included, each when the way lets it through."""
    loop = asyncio.get_running_loop()
    travelling: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MOST_CHUNKS)

    async def receive() -> None:
        data = b"at first"
        while data:
            try:
                data = await reader.read(CHUNK_BYTES)
            except OSError:  # reset: an end like any other
                data = b""
            await travelling.put((loop.time(), data))

    receiving = asyncio.ensure_future(receive())
    try:
        while True:
            sent_at, data = await travelling.get()
            await way.is_open.wait()
            if (early_s := sent_at + way.delay_s - loop.time()) > 0:
                await asyncio.sleep(early_s)
            if not data:
                break
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # the receiver is gone; the sender is told by its own connection's end
    finally:
        receiving.cancel()
        writer.close()


async def main() -> None:
    loop = asyncio.get_running_loop()
    switchboard = Switchboard()
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := await commands.readline():
        answer = await switchboard.obey(json.loads(line))
        with contextlib.suppress(OSError):
            print(json.dumps(answer), flush=True)
    os._exit(0)  # nobody waits for what is still on its way


if __name__ == "__main__":
    asyncio.run(main())
