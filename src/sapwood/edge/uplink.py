"""The link to the parent, whoever that is at the time: requests up, answers down in any order.

What is asked while there is no parent waits for one. What was asked of a parent that is lost may
have been carried out: it is asked again only where that does no harm, else it fails.
"""

import asyncio
import logging
from collections import deque
from dataclasses import dataclass

from sapwood.server.link import Link, PeerUnreachable, Said
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct

log = logging.getLogger("sapwood.edge")

PATIENCE_S = 15.0
"""How long a request waits for a parent."""
LOOK_S = 0.5
MOST_UNSENT_BYTES = 4 << 20

CLOSED = "this edge stops"


class Lost(Exception):
    """There is no answer, and what was asked may have been carried out."""


@dataclass(slots=True, eq=False)
class _Asked:
    api: Api
    message: Said
    timeout_s: float
    repeatable: bool
    future: asyncio.Future[Struct]
    until: float


class Uplink:
    def __init__(self) -> None:
        self._link: Link | None = None
        self._queue: deque[_Asked] = deque()
        self._connected = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(LOOK_S, self._give_up_late)
        self.changes_total = 0
        """How often there was another parent, or the same one anew."""

    @property
    def is_connected(self) -> bool:
        return self._link is not None and self._link.is_open

    async def connected(self) -> None:
        await self._connected.wait()

    def ask(
        self, api: Api, message: Said, *, timeout_s: float, repeatable: bool
    ) -> asyncio.Future[Struct]:
        """The answer to come, or Lost. Requests leave in the order of these calls."""
        until = self._loop.time() + PATIENCE_S
        future: asyncio.Future[Struct] = self._loop.create_future()
        asked = _Asked(api, message, timeout_s, repeatable, future, until)
        self._queue.append(asked)
        self._flush()
        return future

    def close(self) -> None:
        self._timer.cancel()
        self._fail(list(self._queue), CLOSED)
        self._queue.clear()

    # Sending

    def _flush(self) -> None:
        while self._queue and (link := self._link) is not None and link.is_open:
            if link.unsent_bytes > MOST_UNSENT_BYTES:
                return  # goes on when the parent has taken some of it
            asked = self._queue.popleft()
            if not asked.future.done():
                self._send(link, asked)

    def _send(self, link: Link, asked: _Asked) -> None:
        try:
            answer = link.send(asked.api, asked.message, asked.timeout_s)
        except PeerUnreachable as error:
            self._fail([asked], str(error))
            return

        def answered(answer: asyncio.Future[Struct]) -> None:
            error = None if answer.cancelled() else answer.exception()
            if answer.cancelled() or asked.future.done():
                return
            if error is None:
                asked.future.set_result(answer.result())
            elif asked.repeatable and not link.is_open:
                self.leave(link)
                asked.until = self._loop.time() + PATIENCE_S
                self._queue.append(asked)
                self._flush()
            else:
                self._fail([asked], str(error))

        answer.add_done_callback(answered)

    def _fail(self, asked: list[_Asked], reason: str) -> None:
        for it in asked:
            if not it.future.done():
                it.future.set_exception(Lost(reason))

    # The link

    def use(self, link: Link) -> None:
        """From now on this is the way up."""
        if link is self._link or not link.is_open:
            return
        log.info("the parent is %s", link.name)
        self._link = link
        self.changes_total += 1
        link.on_drained = self._flush
        self._connected.set()
        self._flush()

    def leave(self, link: Link | None = None) -> None:
        """There is no way up any more; or not this one."""
        if self._link is not None and link in (None, self._link):
            self._link.on_drained = None
            self._link = None
            self._connected.clear()

    def _give_up_late(self) -> None:
        self._timer = self._loop.call_later(LOOK_S, self._give_up_late)
        now = self._loop.time()
        late = [it for it in self._queue if it.until < now]
        if late:
            self._queue = deque(it for it in self._queue if it.until >= now)
            self._fail(late, "there is no parent")
