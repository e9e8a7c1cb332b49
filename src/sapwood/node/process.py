"""One of our programs as a child process: started, awaited, stopped, and never left behind.

The child holds the end of a pipe as its stdin and stops when the other end, held here, is gone.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from sapwood.node.ready import Ready

STOP_TIMEOUT_S = 30.0
ERROR_LINES = 20
# Of a node that the cluster has let go: to start it again would be in vain.
REMOVED_STATUS = 3

# A Ctrl-C at the terminal is for the parent alone, which then stops its children in order:
# they get a session of their own, or what Windows has in its place.
NEW_GROUP: int = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)


class NodeFailed(Exception):
    """The node ended before it was ready; the message is what it said."""


class ChildProcess:
    """A process that is told by the end of its stdin that nobody wants it any more."""

    def __init__(
        self,
        command: Sequence[str | Path],
        stdout: IO[bytes] | int | None,
        stderr: IO[bytes] | int | None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
            start_new_session=True,
            creationflags=NEW_GROUP,
        )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def stdout(self) -> IO[bytes] | None:
        return self._popen.stdout

    @property
    def stderr(self) -> IO[bytes] | None:
        return self._popen.stderr

    @property
    def returncode(self) -> int | None:
        return self._popen.poll()

    def wait(self, timeout_s: float | None = None) -> int:
        return self._popen.wait(timeout_s)

    def tell(self, line: bytes) -> None:
        """A line on its stdin."""
        if self._popen.stdin is not None:
            self._popen.stdin.write(line)
            self._popen.stdin.flush()

    def terminate(self) -> None:
        """Ask it to stop in good order. Where there are no signals, the end of its stdin asks."""
        if os.name == "posix":
            self._popen.terminate()
        self._close(self._popen.stdin)

    def kill(self) -> None:
        self._popen.kill()
        self._finish()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Stop in good order, and by force if that takes too long; the exit status."""
        self.terminate()
        try:
            self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._popen.kill()
        return self._finish()

    def _finish(self) -> int:
        status = self._popen.wait()
        self._close(self._popen.stdin)
        self._close(self._popen.stdout)
        return status

    @staticmethod
    def _close(pipe: IO[bytes] | None) -> None:
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


class NodeProcess(ChildProcess):
    """A node's process. Its log goes to `stderr`, which may be a file or a pipe to read."""

    def __init__(self, flags: Sequence[str], stderr: IO[bytes] | int) -> None:
        # Python's own path only: a json.py in the caller's directory must not stop the node.
        command = [sys.executable, "-P", "-m", "sapwood.node", "--announce", "--with-parent"]
        super().__init__([*command, *flags], subprocess.PIPE, stderr)
        self._ready: Ready | None = None

    def wait_until_ready(self) -> Ready | None:
        """What the node announces, once and for all; None if it ended instead."""
        announced = self._popen.stdout
        if self._ready is None and announced is not None and (line := announced.readline()):
            self._ready = json.loads(line)
        return self._ready


def last_words(log: Path, since: int = 0) -> str:
    """The error at the end of a node's log, or all of its last lines if there is none."""
    try:
        with log.open("rb") as file:
            file.seek(since)
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return "the node ended without a word"
    errors = [line for line in lines if " ERROR " in line or line.startswith("error: ")]
    if errors:
        text = errors[-1]
        return text.partition("sapwood.node: ")[2] or text.removeprefix("error: ")
    return "\n".join(lines[-ERROR_LINES:]) or "the node ended without a word"
