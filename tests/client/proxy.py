"""A wire that can be cut: forwards bytes between clients and a node until it is told not to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import sapwood
from tests.helpers import port_of


class CuttingProxy:
    """What the node advertises, so that every connection of a client goes through it."""

    def __init__(self) -> None:
        self.port = 0
        self.upstream_port = 0
        self.swallows_answers = False
        self.swallowed = asyncio.Event()
        self.rewritten: dict[bytes, bytes] = {}
        """What becomes what in answers."""
        self.cut_after_bytes: int | None = None
        self.cut_count = 0
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        await asyncio.gather(*self._links, return_exceptions=True)

    def cut(self) -> None:
        """Every connection, at once."""
        for link in self._links:
            link.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.upstream_port)
            ways = [
                asyncio.ensure_future(self._copy(reader, up_writer, is_answer=False)),
                asyncio.ensure_future(self._copy(up_reader, writer, is_answer=True)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                up_writer.transport.abort()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._links.discard(task)
            writer.transport.abort()

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool
    ) -> None:
        while data := await reader.read(65536):
            if is_answer and self.swallows_answers:
                self.swallowed.set()
                continue
            for old, new in self.rewritten.items() if is_answer else ():
                data = data.replace(old, new)
            if self.cut_after_bytes is not None:
                data = data[: self.cut_after_bytes]
                self.cut_after_bytes -= len(data)
            writer.write(data)
            await writer.drain()
            if self.cut_after_bytes == 0:
                self.cut_after_bytes = None
                self.cut_count += 1
                return


@asynccontextmanager
async def cut_off_node(directory: Path) -> AsyncIterator[tuple[sapwood.Cluster, CuttingProxy]]:
    """A node that clients reach only through the proxy."""
    proxy = CuttingProxy()
    await proxy.start()
    advertised = {"advertised.kafka": f"127.0.0.1:{proxy.port}"}
    cluster = sapwood.Cluster(config=advertised, data_dir=directory)
    await asyncio.to_thread(cluster.start)
    try:
        proxy.upstream_port = port_of(cluster.bootstrap)
        yield cluster, proxy
    finally:
        await proxy.close()
        await asyncio.to_thread(cluster.close)
