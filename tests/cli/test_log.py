"""`sapwood log dump`."""

import json
from pathlib import Path

import pytest

import sapwood as package
from sapwood.client import Compression, KafkaClient
from sapwood.disk import OsDisk
from sapwood.log import FIRST_ID, Log, LogConfig
from tests.cli.command import said, sapwood
from tests.log.batches import put, record
from tests.log.committed import end, write


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped node's directory with the topic t: its leader's marker, one record, then a
    compressed batch of three."""
    directory = tmp_path_factory.mktemp("dump")
    with package.Cluster(data_dir=directory) as cluster:
        with KafkaClient(cluster.bootstrap) as client:
            client.send("t", b"first", b"key", [("h", b"1"), ("n", None)], timestamp_ms=1234).get()
        with KafkaClient(
            cluster.bootstrap, compression=Compression.GZIP, linger_ms=60_000
        ) as client:
            for value in (b"a", None, b"\xff"):
                client.send("t", value)
    return directory / "node-0"


def segment(logs: Path) -> Path:
    (found,) = logs.glob("logs/t-0.*/*.log")
    return found


def rows(*arguments: str) -> list[dict[str, object]]:
    out, _ = sapwood("log", "dump", "-o", "json", *arguments)
    return [json.loads(line) for line in out.splitlines()]


def test_every_batch_is_a_row_with_its_records_if_wanted(logs: Path) -> None:
    marker, first, second = rows(str(segment(logs)))
    assert (marker["base_offset"], marker["codec"]) == (0, "marker")
    assert (first["base_offset"], first["last_offset"], first["codec"]) == (0, 0, "none")
    assert (second["base_offset"], second["last_offset"], second["codec"]) == (1, 3, "gzip")
    assert first["records"] == []
    _, first, second = rows(str(segment(logs)), "--records")
    assert first["records"] == [
        {
            "offset": 0, "timestamp": 1234, "key": "key", "value": "first",
            "headers": [["h", "1"], ["n", None]],
        }
    ]  # fmt: skip
    records = second["records"]
    assert isinstance(records, list)
    assert [each["value"] for each in records] == ["a", None, "\\xff"]


def test_people_get_a_table_and_the_files_name_beside_it(logs: Path) -> None:
    out, err = sapwood("log", "dump", "--records", str(segment(logs)))
    lines = out.splitlines()
    assert lines[0].split()[:3] == ["POSITION", "BYTES", "OFFSETS"]
    assert "marker" in lines[1]
    assert "0–0" in lines[2]
    assert "key: first h=1 n=null" in lines[3]
    assert "1–3" in lines[4]
    assert err == f"{segment(logs)}\n"


def test_a_directory_shows_every_log_below_it(logs: Path) -> None:
    assert rows(str(segment(logs).parent)) == rows(str(segment(logs)))
    paths = {str(row["path"]) for row in rows(str(logs))}
    assert str(segment(logs)) in paths
    assert any("__cluster_metadata" in path for path in paths)


def test_damage_is_shown_and_is_the_exit_status(logs: Path, tmp_path: Path) -> None:
    data = bytearray(segment(logs).read_bytes())
    data[81 + 90] ^= 0xFF  # in the first record, behind the marker
    damaged = tmp_path / segment(logs).name
    damaged.write_bytes(data)
    out, err = sapwood("log", "dump", "-o", "json", str(damaged), fails=1)
    marker, first, second = (json.loads(line) for line in out.splitlines())
    assert not marker["problem"]
    assert first["problem"]
    assert not second["problem"]
    assert "1 place is damaged" in err
    out, _ = sapwood("log", "dump", str(damaged), fails=1)
    assert "PROBLEM" in out


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    assert "holds no log" in said("log", "dump", str(tmp_path))
    assert "does not exist" in said("log", "dump", str(tmp_path / "nowhere"), fails=2)


def test_transactions_and_ids_of_messages_are_shown_for_what_they_are(tmp_path: Path) -> None:
    log = Log.open(OsDisk(), str(tmp_path), LogConfig(), durable_end=0, clean=False, now_ms=0)
    write(log, 7, b"a")
    end(log, 7, committed=False)
    put(log, [record()], producer=(FIRST_ID + 0xBEE, 0, 0x1D))
    log.close()
    out, _ = sapwood("log", "dump", str(tmp_path))
    _, first, second, third = out.splitlines()
    assert first.endswith(" 7/0 transactional")
    assert second.endswith(" 7/0 abort")
    assert third.endswith(" id bee:1d")
