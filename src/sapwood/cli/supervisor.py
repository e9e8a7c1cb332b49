"""The supervisor of `sapwood up`: keeps the nodes of one directory, and pipelines, running.

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
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from sapwood.node.layout import GATEWAY_PORTS, Layout, LayoutUnusable, edge_directory
from sapwood.node.local import SUPERVISOR_LOCK
from sapwood.node.lock import DirectoryLock, DirectoryLocked
from sapwood.node.process import (
    REMOVED_STATUS,
    STOP_TIMEOUT_S,
    ChildProcess,
    NodeFailed,
    NodeProcess,
    last_words,
)
from sapwood.node.ready import Ready

if TYPE_CHECKING:
    import socket

FIRST_BACK_OFF_S = 0.1
LONGEST_BACK_OFF_S = 10.0
STEADY_AFTER_S = 30.0
NO_PORTS: Mapping[str, int | None] = dict.fromkeys(GATEWAY_PORTS)
LARGEST_LOG_BYTES = 16 * 1024 * 1024
COLOURS = {" WARNING ": "\x1b[33m", " ERROR ": "\x1b[31m", " CRITICAL ": "\x1b[1;31m"}


class NotAPipeline(Exception):
    """What was asked for can't be run; says why."""


class Supervisor:
    """Starts the nodes and then pipelines, starts again what ends, and stops all in good order."""

    def __init__(
        self,
        directory: Path,
        nodes: int | None,
        port: int | None,
        settings: Sequence[str] = (),
        pipelines: Sequence[Path] = (),
        *,
        edges: int = 0,
        outbox: bool = False,
        ports: Mapping[str, int | None] = NO_PORTS,
        echo: bool,
    ) -> None:
        self._stopping = threading.Event()
        self._echo = echo
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = DirectoryLock(directory / SUPERVISOR_LOCK)
        try:
            self.layout = Layout(directory, nodes, port, edges, outbox=outbox)
            self.layout.place_gateways(ports)
            self._gateways = {it: GatewayKeeper(self, it) for it in self.layout.addresses}
            self._edges = {it: EdgeKeeper(self, it, settings) for it in self.layout.edges}
            self._edge_gateways = [
                EdgeGatewayKeeper(self, it, edge) for it, edge in self._edges.items()
            ]
        except BaseException:
            self._lock.release()
            raise
        self._settings = settings
        self._growing = threading.Lock()
        self._nodes = {it: NodeKeeper(self, it, settings) for it in self.layout.addresses}
        self._keepers = [*self._nodes.values(), *self._edges.values()]
        self._pipelines = [PipelineKeeper(self, folder) for folder in pipelines]

    def start(self) -> list[Ready]:
        """Returns when every node is ready; NodeFailed if one ends instead."""
        try:
            # All at once: those who join wait for the founder, and Python takes its time to start.
            for keeper in self._keepers:
                keeper.launch()
            founder = self.layout.founder
            if founder is not None:
                self._nodes[founder].wait_until_ready()
            self.layout.save()
            found = [keeper.wait_until_ready() for keeper in self._keepers]
        except BaseException:
            self.stop()
            raise
        for keeper in self._keepers:
            keeper.start()
        # They needn't be waited for: who connects meanwhile is heard when they are there.
        for other in (*self._all_gateways(), *self._pipelines):
            other.launch()
            other.start()
        return found

    def add_node(self) -> Ready:
        """One more node, which takes its share; NodeFailed if it doesn't start."""
        with self._growing:
            node_id = self.layout.add()
            keeper = NodeKeeper(self, node_id, self._settings)
            keeper.launch()
            try:
                found = keeper.wait_until_ready()
            except NodeFailed:
                self.layout.forget(node_id)
                raise
            gateway = GatewayKeeper(self, node_id)
            gateway.launch()
            self._nodes[node_id], self._gateways[node_id] = keeper, gateway
            self._keepers.append(keeper)
            keeper.start()
            gateway.start()
        return found

    def add_pipeline(self, text: str) -> str:
        """Keep one more running; its name. NotAPipeline if that can't be."""
        import click  # a supervisor that isn't asked shouldn't wait for what this needs

        from sapwood.cli import CommandFailed
        from sapwood.cli.pipeline import standing

        with self._growing:
            try:
                (folder,) = standing(self.layout.directory, [text])
            except (click.UsageError, CommandFailed, ValueError) as error:
                raise NotAPipeline(str(error)) from error
            if any(it.is_for(folder.path) for it in self._pipelines):
                raise NotAPipeline(f"{folder.name} is running: give this one another --name")
            keeper = PipelineKeeper(self, folder.path)
            self._pipelines.append(keeper)
            keeper.launch()
            keeper.start()
        return folder.name

    def forget(self, node_id: int) -> None:
        """The node has left the cluster."""
        self.layout.forget(node_id)
        self._gateways[node_id].terminate()

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
        # Pipelines first, and nodes last: they have a last word to tell the cluster.
        for keepers in (self._pipelines, self._all_gateways(), self._keepers):
            for keeper in keepers:
                keeper.terminate()
            for keeper in keepers:
                keeper.finish()
        self._lock.release()

    def _all_gateways(self) -> list["GatewayKeeper"]:
        return [*self._gateways.values(), *self._edge_gateways]

    def _on_signal(self, *_: object) -> None:
        if self._stopping.is_set():
            for keeper in (*self._pipelines, *self._all_gateways(), *self._keepers):
                keeper.kill()
            os._exit(1)
        self._stopping.set()

    @property
    def stopping(self) -> threading.Event:
        return self._stopping

    def say(self, text: str) -> None:
        with contextlib.suppress(OSError):  # it may be a file on a disk that is full
            print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)

    def show(self, name: str, line: bytes) -> None:
        """A node's log line, in the foreground."""
        if not self._echo:
            return
        text = line.decode(errors="replace").rstrip("\n")
        if len(self._keepers) > 1:
            text = f"{name} {text}"
        if sys.stderr.isatty() and "NO_COLOR" not in os.environ:
            for level, colour in COLOURS.items():
                if level in text[:40]:
                    text = f"{colour}{text}\x1b[0m"
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr, flush=True)


class Keeper(threading.Thread, ABC):
    """One process's guardian: a thread that waits for its end and starts it again."""

    first_back_off_s = FIRST_BACK_OFF_S
    longest_back_off_s = LONGEST_BACK_OFF_S
    stop_timeout_s = STOP_TIMEOUT_S

    def __init__(self, supervisor: Supervisor, label: str, log_path: Path) -> None:
        super().__init__(name=f"keeper of {label}", daemon=True)
        self._supervisor = supervisor
        self._label = label
        self._log_path = log_path
        self._log_thread: threading.Thread | None = None
        self._process: ChildProcess | None = None

    def launch(self) -> ChildProcess:
        process = self._open()
        self._process = process
        self._log_thread = threading.Thread(target=self._copy_log, args=(process,), daemon=True)
        self._log_thread.start()
        return process

    @abstractmethod
    def _open(self) -> ChildProcess:
        """A new process, whose stderr is a pipe."""

    @abstractmethod
    def _is_over(self, status: int) -> bool:
        """Whether it ended for good, and isn't to be started again."""

    def _reason(self) -> str:
        """Why it ended, if that is known."""
        return ""

    def _show(self, line: bytes) -> None:
        """A line of its log, in the foreground."""

    def run(self) -> None:
        supervisor = self._supervisor
        back_off_s = self.first_back_off_s
        process = self._process
        while process is not None:
            started = time.monotonic()
            status = process.wait()
            if supervisor.stopping.is_set() or self._is_over(status):
                return
            if time.monotonic() - started > STEADY_AFTER_S:
                back_off_s = self.first_back_off_s
            supervisor.say(
                f"{self._label} ended with status {status}{self._reason()}; "
                f"it is started again in {back_off_s:g} s"
            )
            if supervisor.stopping.wait(back_off_s):
                return
            back_off_s = min(2 * back_off_s, self.longest_back_off_s)
            process = self.launch()
            if supervisor.stopping.is_set():  # it was told to stop too early to hear of it
                return

    def terminate(self) -> None:
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def finish(self) -> None:
        if self.is_alive():
            self.join(LONGEST_BACK_OFF_S)  # it may be starting the process just now
        if self._process is not None:
            self._process.stop(self.stop_timeout_s)
        if self._log_thread is not None:
            self._log_thread.join()

    def _copy_log(self, process: ChildProcess) -> None:
        if process.stderr is None:
            return
        with process.stderr as lines, contextlib.closing(LogFile(self._log_path)) as log:
            for line in lines:
                log.write(line)
                self._show(line)


class NodeKeeper(Keeper):
    kind = "node"

    def __init__(self, supervisor: Supervisor, index: int, settings: Sequence[str]) -> None:
        self._layout = supervisor.layout
        self._index = index
        directory = self._directory()
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__(supervisor, f"{self.kind} {index}", directory / "node.log")
        self._settings = [flag for setting in settings for flag in ("--set", setting)]
        self._node: NodeProcess | None = None
        self._said_before = 0

    def _directory(self) -> Path:
        return self._layout.node_directory(self._index)

    def _flags(self) -> list[str]:
        return self._layout.flags(self._index)

    def _open(self) -> NodeProcess:
        self._said_before = self._log_path.stat().st_size if self._log_path.exists() else 0
        self._node = NodeProcess([*self._flags(), *self._settings], subprocess.PIPE)
        return self._node

    def wait_until_ready(self) -> Ready:
        ready = self._node.wait_until_ready() if self._node is not None else None
        if ready is None:
            self.finish()
            raise NodeFailed(f"{self._label}: {last_words(self._log_path, self._said_before)}")
        return ready

    def _is_over(self, status: int) -> bool:
        if status != REMOVED_STATUS:
            return False
        self._supervisor.say(f"{self._label} was removed from the cluster")
        self._supervisor.forget(self._index)
        return True

    def _show(self, line: bytes) -> None:
        self._supervisor.show(str(self._index), line)


class EdgeKeeper(NodeKeeper):
    kind = "edge"

    def _directory(self) -> Path:
        return edge_directory(self._layout.directory, self._index)

    def _flags(self) -> list[str]:
        return self._layout.edge_flags(self._index)

    def _is_over(self, status: int) -> bool:
        return False

    def _show(self, line: bytes) -> None:
        self._supervisor.show(self._label, line)


class GatewayKeeper(Keeper):
    """Of the gateway beside a node. Its ports are opened here, so that they are never closed to
    anybody while it starts, and starts again."""

    kind = "node"

    def __init__(self, supervisor: Supervisor, index: int) -> None:
        self._layout = supervisor.layout
        self._index = index
        directory = self._directory()
        directory.mkdir(parents=True, exist_ok=True)
        label = f"the gateway of {self.kind} {index}"
        super().__init__(supervisor, label, directory / "gateway.log")
        self._places = {name: _listen(name, at[index]) for name, at in self._addresses().items()}

    def _directory(self) -> Path:
        return self._layout.node_directory(self._index)

    def _addresses(self) -> Mapping[str, Mapping[int, str]]:
        return self._layout.gateways

    def _node_id(self) -> int:
        return self._index

    def _servers(self) -> list[str]:
        addresses = self._layout.addresses
        others = [address for it, address in addresses.items() if it != self._index]
        return [addresses[self._index], *others]

    def _open(self) -> ChildProcess:
        command = [sys.executable, "-P", "-m", "sapwood.gateway"]
        command += ["--node-id", str(self._node_id()), "--bootstrap", ",".join(self._servers())]
        command += ["--with-parent", "--supervised", "--report"]
        fds = []
        for name, place in self._places.items():
            if isinstance(place, str):
                command += [f"--{name}", place]
            else:
                command += [f"--{name}", str(place.fileno())]
                fds.append(place.fileno())
        process = ChildProcess(command, subprocess.PIPE, subprocess.PIPE, fds)
        threading.Thread(target=self._answer, args=(process,), daemon=True).start()
        return process

    def _answer(self, process: ChildProcess) -> None:
        """What it asks for on behalf of people."""
        if process.stdout is None:
            return
        answer: object
        for line in process.stdout:
            question = json.loads(line)
            try:
                if question["ask"] == "node":
                    answer = self._supervisor.add_node()
                else:
                    answer = {"name": self._supervisor.add_pipeline(question["text"])}
            except (NodeFailed, NotAPipeline, OSError) as error:
                answer = {"error": str(error)}
            with contextlib.suppress(OSError):
                process.tell(json.dumps(answer).encode() + b"\n")

    def _is_over(self, status: int) -> bool:
        return self._index not in self._layout.addresses


class EdgeGatewayKeeper(GatewayKeeper):
    """What it serves goes through its edge, which tells it of the siblings."""

    kind = "edge"

    def __init__(self, supervisor: Supervisor, index: int, edge: EdgeKeeper) -> None:
        super().__init__(supervisor, index)
        self._edge = edge
        self._edge_id: int | None = None

    def _directory(self) -> Path:
        return edge_directory(self._layout.directory, self._index)

    def _addresses(self) -> Mapping[str, Mapping[int, str]]:
        return self._layout.edge_gateways

    def _node_id(self) -> int:
        if self._edge_id is None:  # the edge was waited for before any gateway is launched
            self._edge_id = self._edge.wait_until_ready()["node_id"]
        return self._edge_id

    def _servers(self) -> list[str]:
        return [self._layout.edges[self._index]]

    def _is_over(self, status: int) -> bool:
        return False


def _listen(name: str, address: str) -> "socket.socket | str":
    """A socket that a child may take over; where that can't be, the address."""
    if os.name != "posix":
        return address
    import socket

    host, _, port = address.rpartition(":")
    try:
        listening = socket.create_server((host, int(port)), backlog=1024)
    except OSError as error:
        raise OSError(
            f"can't listen at {address}: {error.strerror}; give another port with --{name}-port"
        ) from error
    return listening


class PipelineKeeper(Keeper):
    """Of a standing pipeline, whose start takes Spark seconds of work."""

    first_back_off_s = 1.0
    longest_back_off_s = 60.0
    stop_timeout_s = 15.0  # a pipeline may be killed at any time, and goes on from there

    def __init__(self, supervisor: Supervisor, folder: Path) -> None:
        super().__init__(supervisor, f"pipeline {folder.name}", folder / "driver.log")
        self._folder = folder

    def is_for(self, folder: Path) -> bool:
        return folder == self._folder and self.is_alive()

    def _open(self) -> ChildProcess:
        bootstrap = ",".join(self._supervisor.layout.addresses.values())
        command = [sys.executable, "-P", "-m", "sapwood.cli.driver", str(self._folder), bootstrap]
        return ChildProcess(command, subprocess.DEVNULL, subprocess.PIPE)

    def _is_over(self, status: int) -> bool:
        return status == 0  # somebody stopped it

    def _reason(self) -> str:
        from sapwood.spark.pipelines.state import RunFolder  # nobody waits for it here

        found = RunFolder(self._folder).status()
        return f": {found.error}" if found is not None and found.error else ""


class LogFile:
    """A log that is put aside when it has grown large; one older one is kept.

    A line that can't be written, as on a full disk, is missing from it, and the next one is tried.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._missing = 0

    def write(self, line: bytes) -> None:
        try:
            if self._missing:
                # What came before may have been cut off within a line.
                self._append(b"\n%d lines could not be written here\n" % self._missing)
                self._missing = 0
            self._append(line)
        except OSError:
            self._missing += 1
            self.close()

    def _append(self, data: bytes) -> None:
        if self._file is not None and self._file.tell() > LARGEST_LOG_BYTES:
            self.close()
            os.replace(self._path, self._path.with_suffix(".log.1"))
        if self._file is None:
            self._file = self._path.open("ab", buffering=0)
        while data:
            data = data[self._file.write(data) :]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def main(arguments: list[str]) -> int:
    """DIRECTORY NODES EDGES OUTBOX PORT PORTS PIPELINES [KEY=VALUE…]; PORTS are the gateways'.

    One line on stdout says how it went.
    """
    directory, nodes, edges, outbox, port, ports, pipelines, *settings = arguments
    answer: dict[str, object]
    try:
        supervisor = Supervisor(
            Path(directory),
            json.loads(nodes),
            json.loads(port),
            settings,
            [Path(folder) for folder in json.loads(pipelines)],
            edges=json.loads(edges),
            outbox=json.loads(outbox),
            ports=json.loads(ports),
            echo=False,
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
