"""Requests whose answers are still to be written, and which of them may be written now."""

import asyncio
from collections import deque
from collections.abc import Iterator

from sapwood.server.types import Response
from sapwood.wire.codec import Buffer

Answer = list[Buffer] | asyncio.Future[Response]


class InOrder:
    """For clients: an answer leaves when those to all earlier requests have left."""

    def __init__(self) -> None:
        self.request_bytes = 0
        self._queue: deque[tuple[Answer, int]] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, answer: Answer, request_bytes: int) -> None:
        self._queue.append((answer, request_bytes))
        self.request_bytes += request_bytes

    def take(self, _finished: asyncio.Future[Response]) -> Iterator[Response]:
        """All that is ready at the head of the queue; raises what an answer raised.

        One sync resolves many futures at once: the first one's callback finds the others done, so
        their answers leave together.
        """
        queue = self._queue
        while queue:
            answer, request_bytes = queue[0]
            if isinstance(answer, list):
                yield answer
            elif answer.done():
                yield answer.result()
            else:
                break
            queue.popleft()
            self.request_bytes -= request_bytes

    def forget(self) -> None:
        """Nobody waits for them any more: they need not hold memory till their time."""
        for answer, _ in self._queue:
            if isinstance(answer, asyncio.Future):
                answer.cancel()
        self._queue.clear()


class AsReady:
    """For nodes, which match answers by their ids: one that takes long holds up no other."""

    def __init__(self) -> None:
        self.request_bytes = 0
        self._waiting: dict[asyncio.Future[Response], int] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, answer: asyncio.Future[Response], request_bytes: int) -> None:
        self._waiting[answer] = request_bytes
        self.request_bytes += request_bytes

    def take(self, finished: asyncio.Future[Response]) -> Iterator[Response]:
        self.request_bytes -= self._waiting.pop(finished)
        yield finished.result()

    def forget(self) -> None:
        for answer in list(self._waiting):
            answer.cancel()
        self._waiting.clear()
