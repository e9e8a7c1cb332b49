"""The supervisor of `sapwood up`: keeps the nodes of one directory running until it is stopped.

`up` runs it in its own process, or with --detach as a process of its own. That one is started by
this file's path, not as a module of the package, so that it loads neither click nor rich.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from sapwood.node.layout import Layout, LayoutUnusable
from sapwood.node.local import SUPERVISOR_LOCK
from sapwood.node.lock import DirectoryLock, DirectoryLocked
from sapwood.node.process import REMOVED_STATUS, NodeFailed, NodeProcess, last_words
from sapwood.node.ready import Ready

FIRST_BACK_OFF_S = 0.1
LONGEST_BACK_OFF_S = 10.0
STEADY_AFTER_S = 30.0
LARGEST_LOG_BYTES = 16 * 1024 * 1024
COLOURS = {" WARNING ": "\x1b[33m", " ERROR ": "\x1b[31m", " CRITICAL ": "\x1b[1;31m"}


class Supervisor:
    """Starts the nodes, starts again what ends, and stops all of it in good order."""

    def __init__(
        self,
        directory: Path,
        nodes: int | None,
        port: int | None,
        settings: Sequence[str] = (),
        *,
        echo: bool,
    ) -> None:
        self._stopping = threading.Event()
        self._echo = echo
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = DirectoryLock(directory / SUPERVISOR_LOCK)
        try:
            self.layout = Layout(directory, nodes, port)
        except BaseException:
            self._lock.release()
            raise
        self._keepers = {
            node_id: Keeper(self, node_id, settings) for node_id in self.layout.addresses
        }

    def start(self) -> list[Ready]:
        """Returns when every node is ready; NodeFailed if one ends instead."""
        try:
            # All at once: those who join wait for the founder, and Python takes its time to start.
            for keeper in self._keepers.values():
                keeper.launch()
            founder = self.layout.founder
            if founder is not None:
                self._keepers[founder].wait_until_ready()
            self.layout.save()
            found = [keeper.wait_until_ready() for keeper in self._keepers.values()]
        except BaseException:
            self.stop()
            raise
        for keeper in self._keepers.values():
            keeper.start()
        return found

    def run(self) -> None:
        """Supervise until SIGTERM, SIGINT or the end of the terminal."""
        for name in ("SIGTERM", "SIGINT", "SIGHUP"):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), self._on_signal)
        while not self._stopping.wait(0.5):  # with a limit: Windows can't interrupt a wait
            pass
        self.stop()

    def stop(self) -> None:
        self._stopping.set()
        for keeper in self._keepers.values():
            keeper.terminate()
        for keeper in self._keepers.values():
            keeper.finish()
        self._lock.release()

    def _on_signal(self, *_: object) -> None:
        if self._stopping.is_set():
            for keeper in self._keepers.values():
                keeper.kill()
            os._exit(1)
        self._stopping.set()

    @property
    def stopping(self) -> threading.Event:
        return self._stopping

    def say(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)

    def show(self, node_id: int, line: bytes) -> None:
        """A node's log line, in the foreground."""
        if not self._echo:
            return
        text = line.decode(errors="replace").rstrip("\n")
        if len(self._keepers) > 1:
            text = f"{node_id} {text}"
        if sys.stderr.isatty() and "NO_COLOR" not in os.environ:
            for level, colour in COLOURS.items():
                if level in text[:40]:
                    text = f"{colour}{text}\x1b[0m"
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr, flush=True)


class Keeper(threading.Thread):
    """One node's guardian: a thread that waits for its end and starts it again."""

    def __init__(self, supervisor: Supervisor, node_id: int, settings: Sequence[str]) -> None:
        super().__init__(name=f"keeper-{node_id}", daemon=True)
        self._supervisor = supervisor
        self._node_id = node_id
        directory = supervisor.layout.node_directory(node_id)
        directory.mkdir(parents=True, exist_ok=True)
        self._log_path = directory / "node.log"
        self._settings = [flag for setting in settings for flag in ("--set", setting)]
        self._node: NodeProcess | None = None
        self._log_thread: threading.Thread | None = None
        self._said_before = 0

    def launch(self) -> NodeProcess:
        self._said_before = self._log_path.stat().st_size if self._log_path.exists() else 0
        flags = self._supervisor.layout.flags(self._node_id)
        node = NodeProcess([*flags, *self._settings], subprocess.PIPE)
        self._node = node
        self._log_thread = threading.Thread(target=self._copy_log, args=(node,), daemon=True)
        self._log_thread.start()
        return node

    def wait_until_ready(self) -> Ready:
        ready = self._node.wait_until_ready() if self._node is not None else None
        if ready is None:
            self.finish()
            raise NodeFailed(
                f"node {self._node_id}: {last_words(self._log_path, self._said_before)}"
            )
        return ready

    def run(self) -> None:
        supervisor = self._supervisor
        back_off_s = FIRST_BACK_OFF_S
        node = self._node
        while node is not None:
            started = time.monotonic()
            status = node.wait()
            if supervisor.stopping.is_set():
                return
            if status == REMOVED_STATUS:
                supervisor.say(f"node {self._node_id} was removed from the cluster")
                supervisor.layout.forget(self._node_id)
                return
            if time.monotonic() - started > STEADY_AFTER_S:
                back_off_s = FIRST_BACK_OFF_S
            supervisor.say(
                f"node {self._node_id} ended with status {status}; "
                f"it is started again in {back_off_s:g} s"
            )
            if supervisor.stopping.wait(back_off_s):
                return
            back_off_s = min(2 * back_off_s, LONGEST_BACK_OFF_S)
            node = self.launch()
            if supervisor.stopping.is_set():  # it was told to stop too early to hear of it
                return

    def terminate(self) -> None:
        if self._node is not None:
            self._node.terminate()

    def kill(self) -> None:
        if self._node is not None:
            self._node.kill()

    def finish(self) -> None:
        if self.is_alive():
            self.join(LONGEST_BACK_OFF_S)  # it may be starting the node just now
        if self._node is not None:
            self._node.stop()
        if self._log_thread is not None:
            self._log_thread.join()

    def _copy_log(self, node: NodeProcess) -> None:
        if node.stderr is None:
            return
        with node.stderr as lines, LogFile(self._log_path) as log:
            for line in lines:
                log.write(line)
                self._supervisor.show(self._node_id, line)


class LogFile:
    """A log that is put aside when it has grown large; one older one is kept."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] = path.open("ab")

    def write(self, line: bytes) -> None:
        if self._file.tell() > LARGEST_LOG_BYTES:
            self._file.close()
            os.replace(self._path, self._path.with_suffix(".log.1"))
            self._file = self._path.open("ab")
        self._file.write(line)
        self._file.flush()

    def __enter__(self) -> "LogFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def main(arguments: list[str]) -> int:
    """DIRECTORY NODES PORT [KEY=VALUE…]; says on stdout, in one line, how the start went."""
    directory, nodes, port, *settings = arguments
    answer: dict[str, object]
    try:
        supervisor = Supervisor(
            Path(directory), json.loads(nodes), json.loads(port), settings, echo=False
        )
        answer = {"nodes": supervisor.start()}
    except (NodeFailed, DirectoryLocked, LayoutUnusable, OSError) as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)
    with open(os.devnull, "w") as nowhere:  # whoever waits for more sees the end of it
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    if "error" in answer:
        return 1
    supervisor.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
