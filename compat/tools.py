"""Kafka's command-line tools: each has to succeed, and to say what it would say of Kafka."""

import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compat.judge import run

PACKAGE = "org.apache.kafka.tools"


@dataclass(frozen=True)
class Step:
    """A call of a tool, and patterns that must be found in what it prints, or must not (`!`)."""

    title: str
    main: str
    arguments: str
    wanted: tuple[str, ...]
    stdin: str = ""


@dataclass(frozen=True)
class ToolResult:
    title: str
    problem: str | None


DELETION = {"version": 1, "partitions": [{"topic": "tools.one", "partition": 0, "offset": 2}]}
CONNECT = "--bootstrap-server {bootstrap} "
READ = CONNECT + "--topic tools.one --partition 0 --timeout-ms 15000 "

STEPS = (
    Step(
        "topics: create", "TopicCommand",
        CONNECT + "--create --topic tools --partitions 2 --config retention.ms=1000000",
        ("Created topic tools",),
    ),
    Step(
        "topics: create again", "TopicCommand",
        CONNECT + "--create --topic tools --if-not-exists", ("!Exception",),
    ),
    Step(
        "topics: create one partition", "TopicCommand",
        CONNECT + "--create --topic tools.one --partitions 1 --replication-factor 1",
        (r"Created topic tools\.one",),
    ),
    Step("topics: list", "TopicCommand", CONNECT + "--list", (r"(?m)^tools$", r"(?m)^tools\.one$")),
    Step(
        "topics: alter", "TopicCommand",
        CONNECT + "--alter --topic tools --partitions 3", ("!Exception",),
    ),
    Step(
        "topics: describe", "TopicCommand", CONNECT + "--describe --topic tools",
        (
            r"PartitionCount: 3\s+ReplicationFactor: 1\s+Configs: .*retention\.ms=1000000",
            r"Partition: 2\s+Leader: 0\s+Replicas: 0\s+Isr: 0",
        ),
    ),
    Step(
        "topics: describe what is amiss", "TopicCommand",
        CONNECT + "--describe --unavailable-partitions", ("!Topic:",),
    ),
    Step(
        "configs: alter a topic", "kafka.admin.ConfigCommand",
        CONNECT + "--alter --entity-type topics --entity-name tools"
        " --add-config max.message.bytes=2000000,cleanup.policy=[compact,delete]"
        " --delete-config retention.ms",
        ("Completed updating config for topic tools",),
    ),
    Step(
        "configs: describe a topic", "kafka.admin.ConfigCommand",
        CONNECT + "--describe --entity-type topics --entity-name tools",
        ("max.message.bytes=2000000 sensitive=false synonyms=", "cleanup.policy=compact,delete",
         r"!retention\.ms"),
    ),
    Step(
        "configs: alter all brokers", "kafka.admin.ConfigCommand",
        CONNECT + "--alter --entity-type brokers --entity-default"
        " --add-config log.retention.ms=86400000",
        ("Completed updating default config for brokers",),
    ),
    Step(
        "configs: describe a broker", "kafka.admin.ConfigCommand",
        CONNECT + "--describe --entity-type brokers --entity-name 0 --all",
        ("log.retention.ms=86400000", "DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=86400000",
         "message.max.bytes="),
    ),
    Step(
        "configs: reset all brokers", "kafka.admin.ConfigCommand",
        CONNECT + "--alter --entity-type brokers --entity-default --delete-config log.retention.ms",
        ("Completed updating default config for brokers",),
    ),
    Step(
        "console producer", "ConsoleProducer",
        CONNECT + "--topic tools.one --reader-property parse.key=true"
        " --reader-property parse.headers=true --compression-codec zstd",
        ("!ERROR",),
        stdin="a:1,b:2\tkey\tfirst\nc:3\tkey\tsecond\ne:5\tkey\tthird\nd:4\tk\tfourth\n",
    ),
    Step(
        "console consumer: from the start", "consumer.ConsoleConsumer",
        READ + "--offset earliest --max-messages 4 --formatter-property print.key=true"
        " --formatter-property print.headers=true --formatter-property print.offset=true",
        (r"Offset:0\s+a:1,b:2\s+key\s+first", r"Offset:3\s+d:4\s+k\s+fourth"),
    ),
    Step(
        "console consumer: from an offset", "consumer.ConsoleConsumer",
        READ + "--offset 2 --max-messages 1", (r"(?m)^third$", "!second"),
    ),
    Step(
        "offsets: latest", "GetOffsetShell", CONNECT + "--topic tools.one --time latest",
        (r"(?m)^tools\.one:0:4$",),
    ),
    Step(
        "offsets: earliest, every topic", "GetOffsetShell", CONNECT + "--time earliest",
        (r"(?m)^tools:2:0$", r"(?m)^tools\.one:0:0$"),
    ),
    Step(
        "offsets: largest timestamp", "GetOffsetShell",
        CONNECT + "--topic tools.one --time max-timestamp", (r"(?m)^tools\.one:0:[0-3]$",),
    ),
    Step(
        "delete records", "DeleteRecordsCommand", CONNECT + "--offset-json-file {file}",
        (r"partition: tools\.one-0\s+low_watermark: 2",),
    ),
    Step(
        "log directories", "LogDirsCommand",
        CONNECT + "--describe --topic-list tools.one --broker-list 0",
        (r'"partition":"tools\.one-0","size":[1-9]', '"error":null'),
    ),
    Step("cluster: id", "ClusterTool", "cluster-id " + CONNECT, (r"Cluster ID: \S{22}",)),
    Step("cluster: endpoints", "ClusterTool", "list-endpoints " + CONNECT, (r"0\s+127\.0\.0\.1",)),
    Step(
        "API versions", "BrokerApiVersionsCommand", CONNECT,
        (r"Produce\(0\): 0 to 13 \[usable: 13\]", r"Fetch\(1\): 4 to 18 \[usable: 18\]",
         r"Metadata\(3\): 0 to 13 \[usable: 13\]"),
    ),
    Step(
        "producer performance", "ProducerPerformance",
        CONNECT + "--topic tools.one --num-records 20000 --record-size 100 --throughput -1"
        " --command-property compression.type=lz4",
        (r"20000 records sent",),
    ),
    Step(
        "verifiable producer", "VerifiableProducer",
        CONNECT + "--topic tools.one --max-messages 500 --acks -1",
        (r'"sent":500,"acked":500',),
    ),
    Step("topics: delete", "TopicCommand", CONNECT + "--delete --topic tools.*", ("!Exception",)),
    Step("topics: none left", "TopicCommand", CONNECT + "--list", ("!tools",)),
)  # fmt: skip


def run_tools(libraries: Path, bootstrap: str, steps: Sequence[Step] = STEPS) -> list[ToolResult]:
    with tempfile.TemporaryDirectory(prefix="sapwood-compat-") as directory:
        file = Path(directory) / "deletion.json"
        file.write_text(json.dumps(DELETION), encoding="utf-8")
        return [_run(libraries, step, bootstrap, file) for step in steps]


def _run(libraries: Path, step: Step, bootstrap: str, file: Path) -> ToolResult:
    main = step.main if step.main.startswith("kafka.") else f"{PACKAGE}.{step.main}"
    arguments = step.arguments.format(bootstrap=bootstrap, file=file).split()
    done = run(["-cp", f"{libraries}/*", main, *arguments], step.stdin)
    said = f"{done.stdout}\n{done.stderr}"
    problem = None
    if done.returncode:
        problem = f"ended with {done.returncode}: {said.strip()[-500:]}"
    for pattern in step.wanted if problem is None else ():
        is_absence = pattern.startswith("!")
        if bool(re.search(pattern.removeprefix("!"), said)) == is_absence:
            fault = "said" if is_absence else "didn't say"
            problem = f"{fault} {pattern.removeprefix('!')}: {said.strip()[-500:]}"
            break
    return ToolResult(step.title, problem)
