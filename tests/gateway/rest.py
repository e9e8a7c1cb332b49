"""A gateway in a process of its own, and a client that speaks to it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import httpx

TIMEOUT_S = 40


class Gateway:
    """`python -m sapwood.gateway`, gone at the end."""

    def __init__(
        self,
        bootstrap: str,
        node_id: int | None = None,
        program: tuple[str, ...] = ("-P", "-m", "sapwood.gateway"),
        more: Sequence[str] = (),
    ) -> None:
        self.bootstrap = bootstrap
        flags = ["--bootstrap", bootstrap, "--rest", "127.0.0.1:0", "--lines", "127.0.0.1:0"]
        flags += ["--announce", "--with-parent"]
        if node_id is not None:
            flags += ["--node-id", str(node_id)]
        self.process = subprocess.Popen(
            [sys.executable, *program, *flags, *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        if self.process.stdout is None:
            raise RuntimeError("no pipe")
        self.ready: dict[str, Any] = json.loads(self.process.stdout.readline())
        self.http = httpx.Client(base_url=self.url, timeout=TIMEOUT_S, verify=False)

    @property
    def url(self) -> str:
        return f"http://{self.ready['rest']}"

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.ready["rest"].rpartition(":")
        return host, int(port)

    def get(self, path: str, **query: Any) -> httpx.Response:
        return self.http.get(path, params=query)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def delete(self, path: str, **query: Any) -> httpx.Response:
        return self.http.delete(path, params=query)

    def produce(self, topic: str, *messages: str, **more: Any) -> list[dict[str, Any]]:
        return [
            ok(self.post("/producer/produce", topic=topic, message=each, **more))
            for each in messages
        ]

    def stop(self) -> str:
        """What it said."""
        self.http.close()
        self.process.terminate()
        _, said = self.process.communicate(timeout=TIMEOUT_S)
        return said.decode()

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.communicate(timeout=TIMEOUT_S)

    def __enter__(self) -> "Gateway":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        said = self.stop()
        if "Traceback" in said and kind is None:
            raise AssertionError(said)


def ok(response: httpx.Response, status: int = 200) -> dict[str, Any]:
    assert response.status_code == status, response.text
    found: dict[str, Any] = response.json()
    return found


def problem(response: httpx.Response, status: int) -> str:
    """The detail of problem details that are as they should be."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert ("retry-after" in response.headers) == (status == 503)
    found = response.json()
    assert found["status"] == status
    assert found["title"]
    return str(found["detail"])
