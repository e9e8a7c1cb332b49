"""Transactional producers, and readers of what was committed, of three independent clients."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

import aiokafka
import confluent_kafka
import kafka
from aiokafka.errors import KafkaError as AioError
from kafka.errors import KafkaError as PythonError

from tests.helpers import eventually

TIMEOUT_S = 30
T = TypeVar("T")


class FencedError(Exception):
    """The client says that its producer can't go on."""


class Transactor(Protocol):
    """One transactional producer."""

    def __init__(self, bootstrap: str, name: str, timeout_ms: int = 60_000) -> None: ...

    def begin(self) -> None: ...

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        """Returns when it is acknowledged."""

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...

    @staticmethod
    def read(bootstrap: str, topic: str, partition: int = 0) -> list[bytes]:
        """All that is committed."""


class ConfluentTransactor:
    def __init__(self, bootstrap: str, name: str, timeout_ms: int = 60_000) -> None:
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": name,
                "transaction.timeout.ms": timeout_ms,
                "linger.ms": 0,
            }
        )
        self._producer.init_transactions(TIMEOUT_S)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        failed: list[Any] = []

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                failed.append(error)

        try:
            self._producer.produce(topic, value, partition=partition, on_delivery=delivered)
            self._producer.flush(TIMEOUT_S)
        except confluent_kafka.KafkaException as error:
            raise FencedError(str(error)) from None
        except SystemError as error:
            # It may have its fatal error in hand already when it calls back.
            if not isinstance(error.__cause__, confluent_kafka.KafkaException):
                raise
            raise FencedError(str(error.__cause__)) from None
        if failed:
            raise FencedError(str(failed[0]))

    def commit(self) -> None:
        try:
            self._producer.commit_transaction(TIMEOUT_S)
        except confluent_kafka.KafkaException as error:
            raise FencedError(str(error)) from None

    def abort(self) -> None:
        self._producer.abort_transaction(TIMEOUT_S)

    def close(self) -> None:
        self._producer.purge()
        self._producer.flush(1)

    @staticmethod
    def read(bootstrap: str, topic: str, partition: int = 0) -> list[bytes]:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0)])
        values: list[bytes] = []
        try:
            while True:
                message: Any = eventually(lambda: consumer.poll(1), TIMEOUT_S)
                if message.error() is not None:
                    assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
                    return values
                values.append(message.value())
        finally:
            consumer.close()


class Loop:
    """An event loop on a thread of its own, for a client that lives on one."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT_S)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()


class AioTransactor:
    def __init__(self, bootstrap: str, name: str, timeout_ms: int = 60_000) -> None:
        self._loop = Loop()

        async def start() -> Any:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                transactional_id=name,
                transaction_timeout_ms=timeout_ms,
            )
            await producer.start()
            return producer

        self._producer = self._loop.run(start())

    def begin(self) -> None:
        self._loop.run(self._producer.begin_transaction())

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        try:
            self._loop.run(self._producer.send_and_wait(topic, value, partition=partition))
        except AioError as error:
            raise FencedError(str(error)) from None

    def commit(self) -> None:
        try:
            self._loop.run(self._producer.commit_transaction())
        except AioError as error:
            raise FencedError(str(error)) from None

    def abort(self) -> None:
        self._loop.run(self._producer.abort_transaction())

    def close(self) -> None:
        try:
            self._loop.run(self._producer.stop())
        except AioError:
            pass  # of a producer that was fenced
        finally:
            self._loop.close()

    @staticmethod
    def read(bootstrap: str, topic: str, partition: int = 0) -> list[bytes]:
        async def read() -> list[bytes]:
            consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=bootstrap,
                isolation_level="read_committed",
                auto_offset_reset="earliest",
                enable_auto_commit=False,
            )
            await consumer.start()
            try:
                place = aiokafka.TopicPartition(topic, partition)
                consumer.assign([place])
                end = (await consumer.end_offsets([place]))[place]
                values: list[bytes] = []
                while await consumer.position(place) < end:
                    for records in (await consumer.getmany(timeout_ms=200)).values():
                        values += [it.value for it in records]
                return values
            finally:
                await consumer.stop()

        return asyncio.run(asyncio.wait_for(read(), TIMEOUT_S))


class PythonTransactor:
    def __init__(self, bootstrap: str, name: str, timeout_ms: int = 60_000) -> None:
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=name,
            transaction_timeout_ms=timeout_ms,
        )
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        try:
            self._producer.send(topic, value, partition=partition).get(TIMEOUT_S)
        except PythonError as error:
            raise FencedError(str(error)) from None

    def commit(self) -> None:
        try:
            self._producer.commit_transaction()
        except PythonError as error:
            raise FencedError(str(error)) from None

    def abort(self) -> None:
        self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(timeout=1)

    @staticmethod
    def read(bootstrap: str, topic: str, partition: int = 0) -> list[bytes]:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        try:
            place = kafka.TopicPartition(topic, partition)
            consumer.assign([place])
            end = consumer.end_offsets([place])[place]
            values: list[bytes] = []
            while consumer.position(place) < end:
                for records in consumer.poll(timeout_ms=200).values():
                    values += [it.value for it in records]
            return values
        finally:
            consumer.close()


TRANSACTORS: dict[str, type[Transactor]] = {
    "confluent-kafka": ConfluentTransactor,
    "aiokafka": AioTransactor,
    "kafka-python": PythonTransactor,
}
