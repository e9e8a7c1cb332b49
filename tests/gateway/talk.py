"""The other end of the line protocol, over TCP or a WebSocket."""

import json
import socket
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

TIMEOUT_S = 20
OK = "[RESULT] OK"
BETWEEN = ("[HELP]", "[TREE]", "[REDIRECT]")


class Talk:
    """A connection; messages that arrive between answers are kept apart."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    def write(self, line: str) -> None:
        raise AssertionError("say how")

    def read(self) -> str:
        raise AssertionError("say how")

    def close(self) -> None:
        raise AssertionError("say how")

    def say(self, command: str, **fields: Any) -> str:
        """The answer."""
        return self.say_line(f"[{command}] {json.dumps(fields)}")

    def say_line(self, line: str) -> str:
        self.write(line)
        return self.answer()

    def answer(self) -> str:
        while True:
            line = self.read()
            if not self._keep(line) and not line.startswith(BETWEEN):
                return line

    def error(self, command: str, **fields: Any) -> str:
        """The code of the error that the command gets."""
        return error_in(self.say(command, **fields))

    def message(self) -> dict[str, Any]:
        """The next message."""
        while not self.messages:
            line = self.read()
            assert self._keep(line) or line.startswith(BETWEEN), line
        return self.messages.pop(0)

    def _keep(self, line: str) -> bool:
        if not line.startswith("[NEW_MESSAGE] "):
            return False
        self.messages.append(json.loads(line.removeprefix("[NEW_MESSAGE] ")))
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class TcpTalk(Talk):
    def __init__(self, address: str) -> None:
        super().__init__()
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), TIMEOUT_S)
        self._lines = self.socket.makefile("r", encoding="utf-8", newline="\n")
        assert self.read() == OK

    def write(self, line: str) -> None:
        self.socket.sendall(f"{line}\n".encode())

    def read(self) -> str:
        return self._lines.readline().rstrip("\n")

    def close(self) -> None:
        self._lines.close()
        self.socket.close()


class WebSocketTalk(Talk):
    def __init__(self, address: str) -> None:
        super().__init__()
        self._stack = ExitStack()
        url = f"ws://{address}/ws"
        # What isn't read is to wait at the other end, and to be as large as it looks.
        reading = connect(url, open_timeout=TIMEOUT_S, max_queue=1, compression=None)
        self._socket = self._stack.enter_context(reading)
        assert self.read() == OK

    def write(self, line: str) -> None:
        self._socket.send(line)

    def read(self) -> str:
        try:
            return str(self._socket.recv(TIMEOUT_S))
        except ConnectionClosed:
            return ""

    def close(self) -> None:
        self._stack.close()


def error_in(line: str) -> str:
    assert line.startswith("[RESULT] ERROR "), line
    found = json.loads(line.removeprefix("[RESULT] ERROR "))
    assert found["message"]
    return str(found["code"])
