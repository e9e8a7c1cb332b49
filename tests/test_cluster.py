"""The embedded cluster and the pytest plug-in, as users of the package meet them."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import sapwood
from sapwood.client import KafkaClient
from sapwood.node.process import NodeFailed
from sapwood.pytest_plugin import SharedCluster
from tests.helpers import eventually, port_of


def answers(bootstrap: str) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port_of(bootstrap)), 5).close()
    except OSError:
        return False
    return True


def test_a_cluster_is_there_inside_the_with_statement_and_gone_after_it() -> None:
    with sapwood.Cluster() as cluster:
        bootstrap, data_dir, pid = cluster.bootstrap, cluster.data_dir, cluster.pid()
        assert answers(bootstrap)
        assert (data_dir / "node-0").is_dir()
        assert "is ready" in cluster.log()
    assert not answers(bootstrap)
    assert not data_dir.exists()
    assert not psutil.pid_exists(pid)


def test_a_given_directory_stays_and_keeps_the_data(tmp_path: Path) -> None:
    with sapwood.Cluster(data_dir=tmp_path, topics=["kept"]):
        pass
    with sapwood.Cluster(data_dir=tmp_path) as cluster, KafkaClient(cluster.bootstrap) as client:
        assert "kept" in client.metadata().topics
    assert (tmp_path / "node-0").is_dir()


def test_topics_and_settings_are_in_force_when_the_cluster_is_handed_over() -> None:
    settings = {"num_partitions": 3, "auto_create_topics": False}
    with sapwood.Cluster(config=settings, topics={"narrow": 1, "default": -1}) as cluster:
        with KafkaClient(cluster.bootstrap) as client:
            topics = client.metadata().topics
        assert {name: len(topic.partitions) for name, topic in topics.items()} == {
            "narrow": 1,
            "default": 3,
        }


def test_a_killed_or_stopped_node_starts_again_at_its_address_with_its_data() -> None:
    with sapwood.Cluster(topics=["topic"]) as cluster:
        bootstrap = cluster.bootstrap
        pids = {cluster.pid()}
        cluster.kill()
        assert not answers(bootstrap)
        cluster.restart()
        pids.add(cluster.pid())
        assert cluster.stop() == 0
        assert not answers(bootstrap)
        with pytest.raises(RuntimeError, match="node 0 isn't running"):
            cluster.pid()
        cluster.restart()
        pids.add(cluster.pid())
        cluster.restart()
        pids.add(cluster.pid())
        assert len(pids) == 4
        assert cluster.bootstrap == bootstrap
        with KafkaClient(bootstrap) as client:
            assert "topic" in client.metadata().topics


def test_a_node_that_cannot_start_says_why_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(NodeFailed, match="unknown setting 'colour'"):
        sapwood.Cluster(config={"colour": "green"}, data_dir=tmp_path).start()
    with sapwood.Cluster(data_dir=tmp_path), pytest.raises(NodeFailed, match="in use by process"):
        sapwood.Cluster(data_dir=tmp_path).start()


def test_a_cluster_of_no_nodes_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        sapwood.Cluster(nodes=0)


def test_links_can_be_cut_only_where_there_are_some() -> None:
    with pytest.raises(RuntimeError, match="proxied=True"):
        sapwood.Cluster().partition(0, 1)


def test_a_cluster_that_does_not_run_has_no_directory() -> None:
    with pytest.raises(RuntimeError, match="isn't running"):
        _ = sapwood.Cluster().data_dir


def test_the_node_ends_when_the_program_that_started_it_is_killed(tmp_path: Path) -> None:
    code = "import sapwood, sys; c = sapwood.Cluster(data_dir=sys.argv[1]); c.start(); "
    code += "print(c.pid(), flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        assert program.stdout is not None
        pid = int(program.stdout.readline())
        os.kill(program.pid, signal.SIGKILL)
    eventually(lambda: not psutil.pid_exists(pid))


def test_the_node_ends_with_a_program_that_forgets_to_close_it(tmp_path: Path) -> None:
    code = "import sapwood, sys; c = sapwood.Cluster(data_dir=sys.argv[1]); c.start(); "
    code += "print(c.pid())"
    output = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, check=True, timeout=60
    )
    assert not psutil.pid_exists(int(output.stdout))


def test_the_fixture_gives_a_shared_cluster_and_topics_of_ones_own(sapwood: SharedCluster) -> None:
    first, second = sapwood.topic("orders", partitions=2), sapwood.topic("orders")
    assert first != second
    with KafkaClient(sapwood.bootstrap) as client:
        topics = client.metadata().topics
    assert (len(topics[first].partitions), len(topics[second].partitions)) == (2, 1)


def test_names_that_the_package_lacks_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Clutter'"):
        _ = sapwood.Clutter
    assert "Cluster" in dir(sapwood)
    assert sapwood.__version__
