"""The description of the API is judged by a generator of requests that knows nothing else."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import sapwood
from tests.gateway.rest import Gateway, ok

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
)
MOST_PARTITIONS = 4  # or it would make topics of a thousand for a while


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with sapwood.Cluster() as cluster, Gateway(cluster.bootstrap, node_id=0) as gateway:
        yield gateway


def test_no_server_error_and_no_answer_that_is_not_described(
    gateway: Gateway, tmp_path: Path
) -> None:
    ok(gateway.post("/topics", topic="orders", partitions=2), 201)
    for kind in ("producer", "consumer"):
        ok(gateway.post(f"/{kind}s", **{"topic": "orders", kind: "till-1"}), 201)
    gateway.produce("orders", *map(str, range(200)))
    document = ok(gateway.get("/openapi.json"))
    for name in ("NewTopicBody", "MorePartitionsBody"):
        field = document["components"]["schemas"][name]["properties"]["partitions"]
        for each in (field, *field.get("anyOf", ())):
            if "maximum" in each:
                each["maximum"] = MOST_PARTITIONS
    description = tmp_path / "openapi.json"
    description.write_text(json.dumps(document))
    run = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", str(description)),
            *("--url", gateway.url, "--checks", ",".join(CHECKS), "--seed", "1"),
            *("--exclude-path", "/tree/events"),  # which has no end
            *("--max-examples", "5", "--phases", "examples,coverage,fuzzing", "--no-color"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-1000:]


def test_the_description_names_every_path_and_how_to_retry(gateway: Gateway) -> None:
    document = ok(gateway.get("/openapi.json"))
    assert document["openapi"].startswith("3.1")
    assert {"/topics", "/producer/produce", "/consumer/consume"} <= document["paths"].keys()
    for path in document["paths"].values():
        for operation in path.values():
            assert "Retry-After" in operation["responses"]["503"]["headers"]
