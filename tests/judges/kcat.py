"""kcat, the command-line client (librdkafka in C), as Debian ships it."""

import json
import subprocess
import tempfile
from pathlib import Path

from tests.judges.judge import Message, Received, TopicDescription

TIMEOUT_S = 60


class Kcat:
    name = "kcat"
    sets_timestamps = False

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def run(self, *arguments: str, stdin: bytes = b"") -> str:
        """Standard output; raises with what kcat said on standard error if it fails."""
        command = ["kcat", "-b", self.bootstrap, "-m", "30", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=TIMEOUT_S)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.decode()}")
        return done.stdout.decode()

    def produce(
        self,
        topic: str,
        messages: list[Message],
        *,
        partition: int = 0,
        codec: str = "none",
        idempotent: bool = False,
    ) -> None:
        """One run for each group of headers: kcat gives all messages of a run the same ones."""
        flags = ["-P", "-t", topic, "-p", str(partition), "-z", codec]
        flags += ["-X", "message.max.bytes=100000000"]
        if idempotent:
            flags += ["-X", "enable.idempotence=true"]
        start = 0
        while start < len(messages):
            end = start
            while end < len(messages) and self._alike(messages[start], messages[end]):
                end += 1
            self._produce_alike(flags, messages[start:end])
            start = end

    @staticmethod
    def _alike(first: Message, other: Message) -> bool:
        return first.headers == other.headers and (first.key is None) == (other.key is None)

    def _produce_alike(self, flags: list[str], messages: list[Message]) -> None:
        for name, value in messages[0].headers:
            flags = [*flags, "-H", f"{name}={value.decode()}"]
        lines = []
        for message in messages:
            if message.value is None:
                raise ValueError("kcat writes no null values here")
            prefix = b"" if message.key is None else message.key + b"\x1f"
            lines.append(prefix + message.value)
        if messages[0].key is not None:
            flags = [*flags, "-K", "\x1f"]
        with tempfile.NamedTemporaryFile() as file:
            # -l reads a file line by line; standard input would split at its buffer's size.
            Path(file.name).write_bytes(b"\x1e".join(lines))
            self.run(*flags, "-D", "\x1e", "-l", file.name)

    def consume(
        self, topic: str, count: int, *, partition: int = 0, offset: int = 0
    ) -> list[Received]:
        place = ["-t", topic, "-p", str(partition), "-o", str(offset)]
        output = self.run("-C", *place, "-c", str(count), "-J", "-u", "-q")
        rows = [json.loads(line) for line in output.splitlines()]
        return [self._received(row) for row in rows]

    @staticmethod
    def _received(row: dict[str, object]) -> Received:
        flat = row.get("headers") or []
        if not isinstance(flat, list):
            raise TypeError(f"headers: {flat!r}")
        names, values = flat[::2], flat[1::2]
        key, value = row.get("key"), row.get("payload")
        return Received(
            offset=int(str(row["offset"])),
            timestamp_ms=int(str(row["ts"])),
            is_append_time=row["tstype"] == "logappend",
            key=None if key is None else str(key).encode(),
            value=None if value is None else str(value).encode(),
            headers=tuple((str(n), str(v).encode()) for n, v in zip(names, values, strict=True)),
        )

    def offset_for_timestamp(self, topic: str, timestamp_ms: int, partition: int = 0) -> int:
        output = self.run("-Q", "-t", f"{topic}:{partition}:{timestamp_ms}")
        return int(output.rpartition("offset ")[2])

    def describe_topics(self) -> dict[str, TopicDescription]:
        listing = json.loads(self.run("-L", "-J"))
        return {
            topic["topic"]: TopicDescription(
                {it["partition"]: it["leader"] for it in topic["partitions"]}
            )
            for topic in listing["topics"]
        }
