"""Apache Kafka: one node, broker and controller in one process, as its start script runs it."""

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from bench.peers import PeerFailed
from bench.peers.confluent import ConfluentLoad
from bench.processes import Children

VERSION = "4.3.1"
CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"

# The heap and the collector's settings of kafka-server-start.sh and kafka-run-class.sh.
JAVA = [
    "java", "-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
]  # fmt: skip

POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>sapwood.bench</groupId>
  <artifactId>kafka-peer</artifactId>
  <version>1</version>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""

DEPENDENCY = """\
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>{artifact}</artifactId>
      <version>{version}</version>
    </dependency>"""

PROPERTIES = """\
process.roles=broker,controller
node.id=0
controller.quorum.voters=0@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={data}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""


def cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "sapwood" / "bench" / f"kafka-{VERSION}"


def fetch_jars(directory: Path, artifacts: Sequence[str] = ("kafka_2.13",)) -> Path:
    """The folder of Kafka's jars and all that they need; fetched if it isn't in `directory`."""
    jars = directory / "jars"
    if jars.exists():
        return jars
    directory.mkdir(parents=True, exist_ok=True)
    dependencies = (DEPENDENCY.format(artifact=it, version=VERSION) for it in artifacts)
    (directory / "pom.xml").write_text(POM.format(dependencies="\n".join(dependencies)))
    arriving = directory / "arriving"
    command = ["mvn", "-B", "-q", "dependency:copy-dependencies", f"-DoutputDirectory={arriving}"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PeerFailed(f"mvn couldn't fetch Kafka's jars: {done.stdout.strip()[-500:]}")
    arriving.rename(jars)
    return jars


class Kafka:
    title = f"Kafka {VERSION}"

    def __init__(self) -> None:
        self._children = Children()
        self._jars = cache_directory() / "jars"

    def missing(self) -> str | None:
        if shutil.which("java") is None:
            return "a Java runtime, 17 or newer (Debian: openjdk-17-jre-headless)"
        if not self._jars.exists() and shutil.which("mvn") is None:
            return "mvn, which fetches Kafka's jars (Debian: maven)"
        return None

    def prepare(self) -> None:
        fetch_jars(cache_directory())

    def start(self, directory: Path, port: int, *, synced: bool) -> float:
        properties = directory / "server.properties"
        text = PROPERTIES.format(port=port, controller_port=port + 1, data=directory / "data")
        properties.write_text(text + ("log.flush.interval.messages=1\n" if synced else ""))
        environment = {"CLASSPATH": f"{self._jars}/*"}
        format_storage = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c"]
        done = subprocess.run(
            [*JAVA, *format_storage, str(properties)],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise PeerFailed(f"Kafka couldn't format its storage: {done.stderr.strip()[-500:]}")
        command = [*JAVA, "kafka.Kafka", str(properties)]
        started = time.monotonic()
        self._children.start(command, directory / "server.log", environment)
        return started

    def roots(self) -> list[int]:
        return self._children.pids

    def stop(self) -> None:
        self._children.stop()


PEER = Kafka
LOAD = ConfluentLoad
