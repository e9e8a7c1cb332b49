"""One HTTP connection, with the limits that the HTTP server itself doesn't have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

FIRST_REQUEST_S = 10.0
STALLED_S = 30.0


class Connection(H11Protocol):
    """Closed if no request comes, or if nothing that was written is taken."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.app_state = {**self.app_state, "connection": self}
        self._is_upgraded = False
        self._deadline: asyncio.TimerHandle | None = None
        self.on_reset: Callable[[], None] | None = None
        """Told if the client breaks off without having read what it was sent last."""

    @property
    def is_open(self) -> bool:
        return not self.transport.is_closing()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect(FIRST_REQUEST_S)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self._is_upgraded:
            return
        if self.cycle is not before:  # a request's head is there: the last answer was read
            self._expect(None)
            self.on_reset = None
        elif self.cycle is None or self.cycle.response_complete:
            self._expect(FIRST_REQUEST_S)

    def handle_websocket_upgrade(self, event: Any) -> None:
        self._is_upgraded = True
        self._expect(None)
        super().handle_websocket_upgrade(event)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect(STALLED_S)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._expect(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect(None)
        super().connection_lost(exc)
        if exc is not None and self.on_reset is not None:
            self.on_reset()

    def _expect(self, within_s: float | None) -> None:
        """Nothing more to expect, or the connection goes if it doesn't come in time."""
        if within_s is None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None
        elif self._deadline is None:
            self._deadline = self.loop.call_later(within_s, self.transport.abort)
