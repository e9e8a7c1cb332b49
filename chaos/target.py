"""The cluster under test: its processes, their files and what they say of themselves."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import psutil

import sapwood
from chaos.direct import Direct, NoAnswer, Refused
from chaos.disk import SmallDisk
from chaos.history import Recorder, Trouble

STOP_TIMEOUT_S = 30.0
EVERY_S = 0.05
SMALL_DISK_MIB = 256
LAST_LINES = 5


class Unhealed(Exception):
    """The cluster didn't come to rest after the faults were over."""


class Target:
    """Nodes are counted from 0. Each is up, paused, down, or starting."""

    def __init__(self, directory: Path, nodes: int, *, small_disk: int | None = None) -> None:
        self.nodes = list(range(nodes))
        self.paused: set[int] = set()
        self.down: set[int] = set()
        self.crashes: list[str] = []
        self.keep = True
        """Whether what lies on a small disk is kept at the end."""
        self.disk: SmallDisk | None = None
        self._directory = directory / "cluster"
        self._small_disk = small_disk
        self._starting: dict[int, threading.Thread] = {}
        self._lock = threading.RLock()  # the nemesis strikes while the run looks for crashes
        self._cluster = sapwood.Cluster(nodes, data_dir=self._directory)

    def __enter__(self) -> "Target":
        if self._small_disk is not None:
            self.disk = SmallDisk(self.files(self._small_disk), SMALL_DISK_MIB)
        try:
            self._cluster.start()
        except BaseException:
            self._release_disk()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node in list(self.paused):
            self.resume(node)
        self._join()
        self._cluster.close()
        self._release_disk()

    def _release_disk(self) -> None:
        if self.disk is not None:
            disk, self.disk = self.disk, None
            disk.close(keep=self.keep)

    # What it is

    @property
    def bootstrap(self) -> str:
        return self._cluster.bootstrap

    @property
    def small_disk(self) -> int | None:
        """The node whose disk can be filled."""
        return self._small_disk

    @property
    def up(self) -> list[int]:
        away = self.paused | self.down | self._starting.keys()
        return [node for node in self.nodes if node not in away]

    def address(self, node: int) -> str:
        return self.bootstrap.split(",")[node]

    def files(self, node: int) -> Path:
        return self._directory / f"node-{node}"

    def status(self, node: int) -> Any:
        with Direct(self.address(node)) as direct:
            return direct.status()

    def leader(self, topic: str, partition: int) -> int:
        """Who leads it by what a living node says; -1 if nobody knows."""
        for node in self.up:
            try:
                with Direct(self.address(node), timeout_s=1.0) as direct:
                    return direct.leaders([topic]).get((topic, partition), -1)
            except (NoAnswer, Refused):
                continue
        return -1

    def controller(self) -> int:
        for node in self.up:
            try:
                return int(self.status(node).controller)
            except NoAnswer:
                continue
        return -1

    def complaints(self) -> list[str]:
        """What keeps the cluster from being whole, as its nodes tell; empty if it is."""
        found = []
        for node in self.nodes:
            if node not in self.up:
                found.append(f"node {node} isn't running")
                continue
            try:
                status = self.status(node)
            except NoAnswer as error:
                found.append(f"node {node}: {error}")
                continue
            found += [
                f"node {node}: {it.topic}-{it.partition} is offline: {it.reason}"
                for it in status.offline_partitions
            ]
            if len(self.nodes) > 1 and not status.healthy:
                found.append(
                    f"node {node}: {status.under_replicated} under-replicated, "
                    f"{status.offline} offline, {status.leaderless} without a leader, "
                    f"{status.reassigning} being moved"
                )
        return found

    # What is done to it

    def kill(self, node: int) -> None:
        with self._lock:
            self._cluster.kill(node)
            self._went_down(node)

    def stop(self, node: int) -> None:
        with self._lock:
            self._cluster.stop(node)
            self._went_down(node)

    def interrupt(self, node: int) -> None:
        """SIGINT, as Ctrl-C does."""
        with self._lock:
            process = psutil.Process(self._cluster.pid(node))
            process.send_signal(signal.SIGINT)
            deadline = time.monotonic() + STOP_TIMEOUT_S
            while process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
                time.sleep(EVERY_S)
            self.stop(node)

    def pause(self, node: int) -> None:
        with self._lock:
            os.kill(self._cluster.pid(node), signal.SIGSTOP)
            self.paused.add(node)

    def resume(self, node: int) -> None:
        with self._lock:
            if node in self.paused:
                os.kill(self._cluster.pid(node), signal.SIGCONT)
                self.paused.discard(node)

    def start(self, node: int) -> None:
        """Begin to; a node may need others to be ready, so nobody waits for it here."""
        with self._lock:
            if node not in self.down:
                return
            thread = threading.Thread(target=self._start, args=(node,), daemon=True)
            self._starting[node] = thread
            self.down.discard(node)
            thread.start()

    def heal(self) -> None:
        """Everybody runs again."""
        if self.disk is not None:
            self.disk.free()
        for node in list(self.paused):
            self.resume(node)
        for node in list(self.down):
            self.start(node)
        self._join()

    def await_health(self, patience_s: float, *, excused: bool = False) -> None:
        """`excused`: partitions that stay offline are no reason to wait."""
        deadline = time.monotonic() + patience_s
        while True:
            complaints = self.complaints()
            if excused:
                complaints = [it for it in complaints if "is offline" not in it]
            if not complaints:
                return
            if time.monotonic() > deadline:
                raise Unhealed(f"after {patience_s} s: {'; '.join(complaints)}")
            time.sleep(EVERY_S)

    def notice_crashes(self, recorder: Recorder) -> None:
        """A node that ended by itself is a bug, whatever was done to it; it is started again."""
        with self._lock:
            for node in self.up:
                process = psutil.Process(self._cluster.pid(node))
                if process.status() != psutil.STATUS_ZOMBIE:
                    continue
                words = self._cluster.log(node).splitlines()[-LAST_LINES:]
                text = f"ended by itself: {' / '.join(words)}"
                self.crashes.append(f"node {node} {text}")
                recorder.add(
                    Trouble(client=f"node {node}", at=recorder.now(), error=text, fatal=True)
                )
                self.kill(node)
                self.start(node)

    def _went_down(self, node: int) -> None:
        self.paused.discard(node)
        self.down.add(node)

    def _start(self, node: int) -> None:
        try:
            self._cluster.restart(node)
        except Exception as error:
            self.crashes.append(f"node {node}: {error}")
            self.down.add(node)
        finally:
            del self._starting[node]

    def _join(self) -> None:
        for thread in list(self._starting.values()):
            thread.join()
