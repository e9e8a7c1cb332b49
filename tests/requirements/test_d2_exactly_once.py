"""D2: each message reaches each subscriber exactly once, through crashes of clients and nodes."""

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import sapwood
from sapwood.client import KafkaClient, KafkaError
from sapwood.client.admin import NewTopic
from sapwood.client.messages import received
from tests.helpers import eventually

TOPIC = "d2"
PER_PUBLISHER = 60

PUBLISHER = """
import sys
from sapwood import Client
bootstrap, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Client(bootstrap, id=name) as client:
    for number in range(count):
        client.put("d2", f"{name} {number}", id=f"{name}-{number}")
        print(number, flush=True)
"""


def publish(bootstrap: str, name: str) -> None:
    with sapwood.Client(bootstrap, id=name) as client:
        for number in range(PER_PUBLISHER):
            client.put(TOPIC, f"{name} {number}")


def publish_and_die(bootstrap: str, name: str, lines: int) -> None:
    """A publisher that is killed in the middle; it can't know what was stored."""
    command = [sys.executable, "-c", PUBLISHER, bootstrap, name, str(PER_PUBLISHER)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(lines):
            process.stdout.readline()
        process.kill()


def publish_again_and_again(bootstrap: str, name: str) -> None:
    for lines in (9, 31):
        publish_and_die(bootstrap, name, lines)
    command = [sys.executable, "-c", PUBLISHER, bootstrap, name, str(PER_PUBLISHER)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def collect(client: sapwood.Client, found: list[str], is_done: Callable[[], bool]) -> None:
    while not is_done():
        try:
            message = client.get(TOPIC, timeout=0.5)
        except KafkaError as error:
            assert error.code.retriable, error  # noqa: PT017
            continue
        if message is not None:
            found.append(message.text)


def has(found: list[str], count: int) -> Callable[[], bool]:
    return lambda: len(found) >= count


def subscriber(bootstrap: str, name: str) -> sapwood.Client:
    client = sapwood.Client(bootstrap, id=name)
    client.subscribe(TOPIC)
    return client


def check(found: list[str], names: list[str]) -> None:
    expected = {name: [f"{name} {number}" for number in range(PER_PUBLISHER)] for name in names}
    for name in names:
        assert [each for each in found if each.split()[0] == name] == expected[name]
    assert len(found) == PER_PUBLISHER * len(names)


def test_d2_publishers_and_subscribers_and_nodes_come_and_go_and_each_message_comes_once() -> None:
    publishers = [f"publisher-{number}" for number in range(4)]
    total = PER_PUBLISHER * len(publishers)
    found: list[list[str]] = [[] for _ in range(6)]
    with sapwood.Cluster(nodes=3) as cluster, ThreadPoolExecutor(16) as pool:
        bootstrap = cluster.bootstrap
        with KafkaClient(bootstrap) as admin:
            admin.create_topics([NewTopic(TOPIC, 4, 3)])
        clients = [subscriber(bootstrap, f"subscriber-{number}") for number in range(6)]
        work: list[Future[None]] = []
        for number, client in enumerate(clients):
            # The last two disappear for a while: one says goodbye, the other doesn't.
            enough = 25 if number >= 4 else total
            mine = found[number]
            work.append(pool.submit(collect, client, mine, has(mine, enough)))
        putting = [pool.submit(publish, bootstrap, name) for name in publishers[:3]]
        putting.append(pool.submit(publish_again_and_again, bootstrap, publishers[3]))
        for partition in range(2):
            eventually(has(found[0], 20 * (partition + 1)), 120)
            dead = cluster.leader(TOPIC, partition)
            cluster.kill(dead)
            eventually(has(found[0], len(found[0]) + 1), 60)
            cluster.restart(dead)
        for each in [*putting, *work[4:]]:
            each.result(300)
        clients[4].close()
        returned = [sapwood.Client(bootstrap, id=f"subscriber-{number}") for number in (4, 5)]
        for client, mine in zip(returned, found[4:], strict=True):
            work.append(pool.submit(collect, client, mine, has(mine, total)))
        for each in work:
            each.result(300)
        everybody = [*clients[:4], *returned]
        assert [client.get(TOPIC, timeout=0.5) for client in everybody] == [None] * 6
        for client in [*everybody, clients[5]]:
            client.close()
    for mine in found:
        check(mine, publishers)


def test_d2_a_repeat_under_its_id_is_stored_once_after_crashes_of_publisher_and_nodes() -> None:
    with sapwood.Cluster(nodes=3) as cluster:
        publish_and_die(cluster.bootstrap, "shop", 20)
        cluster.kill(cluster.leader(TOPIC))
        publish_and_die(cluster.bootstrap, "shop", 40)
        dead = next(number for number in cluster.nodes if number not in cluster.running)
        cluster.restart(dead)
        threads = [
            threading.Thread(target=publish_and_die, args=(cluster.bootstrap, "shop", number))
            for number in (60, 60)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with KafkaClient(cluster.bootstrap) as client:
            records = client.consume({(TOPIC, 0): 0}, stop_at="end")
            texts = [received(record).text for record in records]
    assert texts == [f"shop {number}" for number in range(PER_PUBLISHER)]
