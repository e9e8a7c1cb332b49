"""A cluster for a program or a test: real nodes in their own processes, gone at the end."""

import atexit
import contextlib
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from sapwood.node.layout import Layout
from sapwood.node.process import NodeFailed, NodeProcess, last_words

# A node that somebody starts by hand must not find and join the cluster of a test.
OWN_SETTINGS = ["--set", "discoverable=false"]


class Cluster:
    """`with sapwood.Cluster() as cluster:` starts a node on a free port of this machine.

    `config` are node settings or Kafka broker configs (`{"num_partitions": 4,
    "log.retention.ms": 1000}`). `topics` are created before the cluster is handed over: names, or
    names with their number of partitions. The data lies in a temporary directory, removed at the
    end, unless `data_dir` is given. If the program is killed, its nodes notice and stop.
    """

    def __init__(
        self,
        nodes: int = 1,
        *,
        config: Mapping[str, Any] | None = None,
        topics: Iterable[str] | Mapping[str, int] = (),
        data_dir: str | Path | None = None,
    ) -> None:
        if nodes != 1:
            raise ValueError(f"nodes={nodes}: more than one node comes with replication")
        self._settings = [f"{key}={_text(value)}" for key, value in (config or {}).items()]
        self._topics = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics, -1)
        self._given_dir = Path(data_dir).absolute() if data_dir is not None else None
        self._dir: Path | None = None
        self._layout: Layout | None = None
        self._nodes: dict[int, NodeProcess] = {}
        self._count = nodes

    def __enter__(self) -> "Cluster":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        """host:port of every node, for clients' bootstrap.servers."""
        return ",".join(self._layout.addresses.values()) if self._layout else ""

    @property
    def data_dir(self) -> Path:
        """Holds one directory per node, node-<i>, and its log beside it."""
        if self._dir is None:
            raise RuntimeError("the cluster isn't running: use it in a with statement, or start()")
        return self._dir

    def start(self) -> None:
        """Start every node and create the topics; returns when all is ready."""
        self._dir = self._given_dir or Path(tempfile.mkdtemp(prefix="sapwood-"))
        self._dir.mkdir(parents=True, exist_ok=True)
        atexit.register(self.close)
        try:
            self._layout = Layout(self._dir, self._count, 0)
            for index in self._layout.addresses:
                self._start_node(index)
            self._layout.save()
            if self._topics:
                self.create_topics(self._topics)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop every node; remove the data unless its directory was given."""
        atexit.unregister(self.close)
        for node in self._nodes.values():
            node.terminate()
        for node in self._nodes.values():
            node.stop()
        self._nodes.clear()
        if self._dir is not None and self._given_dir is None:
            shutil.rmtree(self._dir, ignore_errors=True)
        self._dir = self._layout = None

    def pid(self, index: int = 0) -> int:
        return self._node(index).pid

    def kill(self, index: int = 0) -> None:
        """SIGKILL: no good-bye, no last flush."""
        self._node(index).kill()
        del self._nodes[index]

    def stop(self, index: int = 0) -> int:
        """SIGTERM: an orderly stop; the exit status."""
        status = self._node(index).stop()
        del self._nodes[index]
        return status

    def restart(self, index: int = 0) -> None:
        """Start the node again, at the address it had; stop it first if it runs."""
        if index in self._nodes:
            self.stop(index)
        self._start_node(index)

    def log(self, index: int = 0) -> str:
        """What the node has logged so far, over all its starts."""
        with contextlib.suppress(FileNotFoundError):
            return self._log_path(index).read_text(encoding="utf-8", errors="replace")
        return ""

    def create_topics(self, topics: Mapping[str, int]) -> None:
        """Create topics with their numbers of partitions; -1 is the cluster's default."""
        from sapwood.client import KafkaClient
        from sapwood.client.admin import NewTopic

        with KafkaClient(self.bootstrap) as client:
            client.create_topics([NewTopic(name, count) for name, count in topics.items()])

    def _node(self, index: int) -> NodeProcess:
        if index not in self._nodes:
            raise RuntimeError(f"node {index} isn't running")
        return self._nodes[index]

    def _log_path(self, index: int) -> Path:
        return self.data_dir / f"node-{index}.log"

    def _start_node(self, index: int) -> None:
        if self._layout is None:
            raise RuntimeError("the cluster isn't running")
        flags = [*self._layout.flags(index), *OWN_SETTINGS]
        for setting in self._settings:
            flags += ["--set", setting]
        log_path = self._log_path(index)
        with log_path.open("ab") as log:
            said_before = log.tell()
            node = NodeProcess(flags, log)
        self._nodes[index] = node
        if node.wait_until_ready() is None:
            node.stop()
            del self._nodes[index]
            raise NodeFailed(f"node {index} didn't start: {last_words(log_path, said_before)}")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
