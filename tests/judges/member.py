"""One member of a group as a process of its own: `python -m tests.judges.member KIND …`.

It says on standard output, a line of JSON each, what it was assigned and what it has processed,
and commits what it has said. Processing is saying: whoever listens has it before the commit.
"""

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

SESSION_MS = 6000
POLL_S = 0.2


def say(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


class Stop(Exception):
    """Asked to leave."""


def stop(*_: object) -> None:
    raise Stop


def confluent(bootstrap: str, group: str, topic: str, **settings: str) -> None:
    from confluent_kafka import Consumer, KafkaException

    own: dict[str, Any] = {name.replace("_", "."): value for name, value in settings.items()}
    if own.get("group.protocol") != "consumer":  # there the coordinator decides on these
        own = {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 500, **own}
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 1000,
            **own,
        }
    )

    def assigned(_: object, partitions: list[Any]) -> None:
        say(assigned=[it.partition for it in partitions], member=consumer.memberid())

    def revoked(_: object, partitions: list[Any]) -> None:
        say(revoked=[it.partition for it in partitions])

    consumer.subscribe([topic], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
    try:
        while True:
            messages = consumer.consume(100, POLL_S)
            got = [it for it in messages if it.error() is None]
            if got:
                say(got=[[it.partition(), it.offset()] for it in got])
                try:
                    consumer.commit(asynchronous=False)
                except KafkaException as error:
                    say(refused=str(error))
    except Stop:
        consumer.close()


def kafka_python(bootstrap: str, group: str, topic: str, **settings: str) -> None:
    from kafka import ConsumerRebalanceListener, KafkaConsumer

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> None:
            say(revoked=[it.partition for it in revoked])

        def on_partitions_assigned(self, assigned: Any) -> None:
            say(assigned=[it.partition for it in assigned])

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=500,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        metadata_max_age_ms=1000,
        **settings,
    )
    consumer.subscribe([topic], listener=Listener())
    try:
        while True:
            records = consumer.poll(POLL_S * 1000, max_records=100)
            got = [[it.partition, it.offset] for some in records.values() for it in some]
            if got:
                say(got=got)
                # Neither `commit` nor `commit_async`: the one takes the generation anew while it
                # tries again, and not the positions; the other, if it has to look for the
                # coordinator first, is done when that is found, and commits later. So after a
                # rebalance either may put a position back that another member has moved on.
                done = threading.Event()
                coordinator = consumer._coordinator
                note = f"{os.getpid()}, {coordinator.generation_if_stable()}"
                positions = consumer._subscription.all_consumed_offsets()
                committing = coordinator._do_commit_offsets_async(
                    {it: at._replace(metadata=note) for it, at in positions.items()}
                )
                committing.add_both(lambda _, done=done: done.set())
                done.wait(SESSION_MS / 1000)
                if not committing.succeeded():
                    say(refused=str(committing.exception))
    except Stop:
        consumer.close(autocommit=False)


def aiokafka(bootstrap: str, group: str, topic: str, **settings: str) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
    from aiokafka.errors import KafkaError

    committing: list[asyncio.Task[None]] = []

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> None:
            # While `commit` tries again it takes the generation anew, and not the positions: after
            # the rebalance it may put a position back that another member has moved on meanwhile.
            for each in committing:
                each.cancel()
            say(revoked=[it.partition for it in revoked])

        def on_partitions_assigned(self, assigned: Any) -> None:
            say(assigned=[it.partition for it in assigned])

    async def run() -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=500,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            metadata_max_age_ms=1000,
            **settings,
        )
        asked = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked.set)
        await consumer.start()
        consumer.subscribe([topic], listener=Listener())
        try:
            while not asked.is_set():
                records = await consumer.getmany(timeout_ms=int(POLL_S * 1000), max_records=100)
                got = [[it.partition, it.offset] for some in records.values() for it in some]
                if got:
                    say(got=got)
                    committing[:] = [asyncio.create_task(consumer.commit())]
                    try:
                        await committing[0]
                    except KafkaError as error:
                        say(refused=str(error))
                    except asyncio.CancelledError:
                        say(refused="the partitions were revoked")
        finally:
            await consumer.stop()

    asyncio.run(run())


KINDS: dict[str, Callable[..., None]] = {
    "confluent-kafka": confluent,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
}

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    kind, bootstrap, group, topic, settings = sys.argv[1:]
    KINDS[kind](bootstrap, group, topic, **json.loads(settings))
