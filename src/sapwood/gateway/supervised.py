"""What a gateway may ask of the supervisor that started it: lines of JSON over its own pipes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

ANSWER_S = 30.0


class Supervised:
    """One question at a time on stdout; the answers come as lines on stdin."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._answer: asyncio.Future[dict[str, Any]] | None = None

    async def ask(self, question: str, **more: Any) -> dict[str, Any]:
        """TimeoutError if nobody answers."""
        async with self._turn:
            self._answer = asyncio.get_running_loop().create_future()
            print(json.dumps({"ask": question, **more}), flush=True)
            async with asyncio.timeout(ANSWER_S):
                return await self._answer

    def answered(self, line: bytes) -> None:
        """A line has arrived on stdin."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(json.loads(line))
