"""Apache Kafka: each node broker and controller in one process, as its start script runs it."""

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from bench.peers import Peer, PeerFailed
from bench.peers.confluent import ConfluentLoad

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
      <groupId>{group}</groupId>
      <artifactId>{artifact}</artifactId>
      <version>{version}</version>
    </dependency>"""

PROPERTIES = """\
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={data}
"""

# The defaults are for three nodes.
ALONE = """\
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""


def cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "sapwood" / "bench" / f"kafka-{VERSION}"


def fetch_jars(
    directory: Path,
    artifacts: Sequence[str] = ("kafka_2.13",),
    group: str = "org.apache.kafka",
    version: str = VERSION,
) -> Path:
    """The folder of these jars and all that they need; fetched if it isn't in `directory`."""
    jars = directory / "jars"
    if jars.exists():
        return jars
    directory.mkdir(parents=True, exist_ok=True)
    dependencies = (
        DEPENDENCY.format(group=group, artifact=it, version=version) for it in artifacts
    )
    (directory / "pom.xml").write_text(POM.format(dependencies="\n".join(dependencies)))
    arriving = directory / "arriving"
    command = ["mvn", "-B", "-q", "dependency:copy-dependencies", f"-DoutputDirectory={arriving}"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PeerFailed(f"mvn couldn't fetch the jars of {group}: {done.stdout.strip()[-500:]}")
    arriving.rename(jars)
    return jars


class Kafka(Peer):
    title = f"Kafka {VERSION}"
    is_clustered = True
    _jars = cache_directory() / "jars"

    def missing(self) -> str | None:
        if shutil.which("java") is None:
            return "a Java runtime, 17 or newer (Debian: openjdk-17-jre-headless)"
        if not self._jars.exists() and shutil.which("mvn") is None:
            return "mvn, which fetches Kafka's jars (Debian: maven)"
        return None

    def prepare(self) -> None:
        fetch_jars(cache_directory())

    def start(self, directory: Path, ports: Sequence[int], *, synced: bool) -> float:
        voters = ",".join(f"{node}@127.0.0.1:{port + 1}" for node, port in enumerate(ports))
        environment = {"CLASSPATH": f"{self._jars}/*"}
        nodes = []
        for node, port in enumerate(ports):
            text = PROPERTIES.format(
                node=node,
                voters=voters,
                port=port,
                controller_port=port + 1,
                data=directory / f"data-{node}",
            )
            text += "" if len(ports) > 1 else ALONE
            text += "log.flush.interval.messages=1\n" if synced else ""
            properties = directory / f"server-{node}.properties"
            properties.write_text(text)
            self._format(properties, environment)
            nodes.append((properties, directory / f"server-{node}.log"))
        started = time.monotonic()
        for properties, log in nodes:
            self.children.start([*JAVA, "kafka.Kafka", str(properties)], log, environment)
        return started

    def stop(self) -> None:
        # A node that stops in good order waits for a controller, which may be the one that is gone.
        self.children.stop(by_force=len(self.children.pids) > 1)

    def _format(self, properties: Path, environment: dict[str, str]) -> None:
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


PEER = Kafka
LOAD = ConfluentLoad
