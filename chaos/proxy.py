"""Between clients and nodes: a TCP proxy, in a process of its own, whose hops can go bad.

Each hop has a name, a port here and a place where it leads to. Cut, its bytes stop, in both
directions or in one (`forth`: from client to node, `back`: the answers), nothing is refused or
ended, and new connections hang. It can be slow (every byte comes later), narrow (few bytes a
second), and its connections can be reset. Links between nodes are `sapwood.node.links`' work.

The process takes one JSON command per line on stdin, answers each with a line on stdout, and ends
when stdin does.
"""

import asyncio
import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

HOST = "127.0.0.1"
CHUNK_BYTES = 64 << 10
NARROW_CHUNK_S = 0.05
# On the way at once, in each direction of a connection.
MOST_CHUNKS = 64

Direction = Literal["both", "forth", "back"]


class Proxy:
    """The handle on such a process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "chaos.proxy"],
            cwd=Path(__file__).resolve().parent.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._lock = threading.Lock()

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self, names: Iterable[str]) -> dict[str, str]:
        """An address for each hop; where it leads to is told by `lead`."""
        found: dict[str, str] = self._ask("open", names=list(names))
        return found

    def lead(self, places: Mapping[str, str]) -> None:
        """Where hops lead to, from now on."""
        self._ask("lead", places=dict(places))

    def cut(self, names: Iterable[str], direction: Direction = "both") -> None:
        self._ask("cut", names=list(names), direction=direction)

    def slow(self, names: Iterable[str], delay_ms: float) -> None:
        """Every byte arrives so much later, in each direction."""
        self._ask("slow", names=list(names), delay_ms=delay_ms)

    def narrow(self, names: Iterable[str], bytes_per_s: float) -> None:
        """For each connection and direction."""
        self._ask("narrow", names=list(names), bytes_per_s=bytes_per_s)

    def reset(self, names: Iterable[str]) -> None:
        """Every connection ends with a reset at both ends; what was on its way is lost."""
        self._ask("reset", names=list(names))

    def heal(self, names: Iterable[str]) -> None:
        """Whole, quick and wide again; what was held up goes on its way."""
        self._ask("heal", names=list(names))

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process.wait()

    def _ask(self, do: str, **details: Any) -> Any:
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise RuntimeError("the proxy has no pipes")
        with self._lock:
            stdin.write(json.dumps({"do": do, **details}).encode() + b"\n")
            stdin.flush()
            line = stdout.readline()
        if not line:
            raise RuntimeError("the proxy has ended")
        return json.loads(line)


class Hop:
    def __init__(self) -> None:
        self.place: tuple[str, int] | None = None
        self.is_open = {"forth": asyncio.Event(), "back": asyncio.Event()}
        self.connections: set[asyncio.StreamWriter] = set()
        self.heal()

    def heal(self) -> None:
        self.delay_s = 0.0
        self.bytes_per_s = float("inf")
        for event in self.is_open.values():
            event.set()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.add(writer)
        there: asyncio.StreamWriter | None = None
        try:
            for event in self.is_open.values():  # a connection needs both directions to come about
                await event.wait()
            if self.place is None:
                return
            back, there = await asyncio.open_connection(*self.place)
            self.connections.add(there)
            await asyncio.gather(
                self._pass_on(reader, there, "forth"),
                self._pass_on(back, writer, "back"),
            )
        except OSError:
            pass  # either side's end is the other's, below
        finally:
            for end in (writer, there):
                if end is not None:
                    self.connections.discard(end)
                    end.transport.abort()

    def reset(self) -> None:
        for writer in list(self.connections):
            connection: socket.socket = writer.get_extra_info("socket")
            linger = struct.pack("ii", 1, 0)  # closing sends a reset instead of an end
            with contextlib.suppress(OSError):  # it has ended just now
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: str
    ) -> None:
        """All that comes, and its end, each when the hop lets it through."""
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

        async def send() -> None:
            while True:
                came_at, data = await travelling.get()
                while data:
                    await self.is_open[direction].wait()
                    if (early_s := came_at + self.delay_s - loop.time()) > 0:
                        await asyncio.sleep(early_s)
                        continue  # it may have been cut meanwhile
                    size = max(1, int(min(len(data), self.bytes_per_s * NARROW_CHUNK_S)))
                    some, data = data[:size], data[size:]
                    writer.write(some)
                    await writer.drain()
                    await asyncio.sleep(size / self.bytes_per_s)
                    if not data:
                        break
                else:
                    await self.is_open[direction].wait()
                    writer.write_eof()
                    return

        receiving = asyncio.ensure_future(receive())
        try:
            await send()
        finally:
            receiving.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await receiving


class Hops:
    def __init__(self) -> None:
        self._hops: dict[str, Hop] = {}
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def obey(self, command: dict[str, Any]) -> Any:
        match command["do"]:
            case "open":
                return {name: await self._open(name) for name in command["names"]}
            case "lead":
                for name, address in command["places"].items():
                    host, _, port = address.rpartition(":")
                    self._hops[name].place = (host, int(port))
            case "cut":
                wanted = command["direction"]
                for name in command["names"]:
                    for direction, event in self._hops[name].is_open.items():
                        if wanted in ("both", direction):
                            event.clear()
            case "slow":
                for name in command["names"]:
                    self._hops[name].delay_s = command["delay_ms"] / 1000
            case "narrow":
                for name in command["names"]:
                    self._hops[name].bytes_per_s = command["bytes_per_s"]
            case "reset":
                for name in command["names"]:
                    self._hops[name].reset()
            case "heal":
                for name in command["names"]:
                    self._hops[name].heal()
        return None

    async def _open(self, name: str) -> str:
        self._hops[name] = hop = Hop()

        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(hop.carry(reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        server = await asyncio.start_server(accepted, HOST, 0)
        self._servers.append(server)
        return f"{HOST}:{server.sockets[0].getsockname()[1]}"


async def main() -> None:
    loop = asyncio.get_running_loop()
    hops = Hops()
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := await commands.readline():
        print(json.dumps(await hops.obey(json.loads(line))), flush=True)
    os._exit(0)  # nobody waits for what is still on its way


if __name__ == "__main__":
    asyncio.run(main())
