"""The gateway beside a node that `sapwood node` runs: started once the node is ready, and kept."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

from sapwood.node import ready
from sapwood.node.process import ChildProcess

POLL_S = 0.1
FIRST_BACK_OFF_S, LONGEST_BACK_OFF_S = 0.5, 10.0


class Beside(threading.Thread):
    def __init__(
        self, directory: Path, rest: str, lines: str | None, advertise_lines: str | None
    ) -> None:
        super().__init__(name="gateway-keeper", daemon=True)
        self._directory = directory
        given = {"--rest": rest, "--lines": lines, "--advertise-lines": advertise_lines}
        self._places = [it for flag, at in given.items() if at is not None for it in (flag, at)]
        self._stopping = threading.Event()
        self._process: ChildProcess | None = None

    def run(self) -> None:
        back_off_s = FIRST_BACK_OFF_S
        while (node := self._node()) is not None:
            self._process = process = self._open(node)
            process.wait()
            if self._stopping.wait(back_off_s):
                return
            back_off_s = min(2 * back_off_s, LONGEST_BACK_OFF_S)

    def stop(self) -> None:
        self._stopping.set()
        if self._process is not None:
            self._process.stop()
        if self.is_alive():
            self.join()

    def _node(self) -> ready.Ready | None:
        """Once it is ready; None if it ends instead."""
        while not self._stopping.wait(POLL_S):
            found = ready.read(self._directory)
            if found is not None and found["pid"] == os.getpid():
                return found
        return None

    def _open(self, node: ready.Ready) -> ChildProcess:
        address = ready.local_address(next(iter(node["listeners"].values())))
        command = [sys.executable, "-P", "-m", "sapwood.gateway", "--with-parent", "--report"]
        command += ["--bootstrap", address, "--node-id", str(node["node_id"]), *self._places]
        return ChildProcess(command, subprocess.DEVNULL, None)
