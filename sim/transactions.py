"""Applications that write in transactions, several instances under one name, and their readers."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field

from sapwood.client.cluster import TopicPartition
from sapwood.client.config import READ_COMMITTED
from sapwood.client.fetcher import read_records
from sapwood.client.transactions import Transactor
from sapwood.wire.errors import KafkaError
from sim.invariants import Invariant, Judges, Sent, Violation
from sim.workload import PAUSE_S, Actor, Shape, SimClient, Workload
from sim.world import World

TIMEOUT_MS = 8_000
"""Of a transaction, and of the calls that it consists of."""
MOST_INSTANCES = 2
LIFE_S = 4.0
"""After about so long an application has another instance, whatever the last one is doing."""
ABORTED_SHARE = 0.3


class Fate(enum.Enum):
    UNKNOWN = "unknown"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(slots=True, eq=False)
class Transaction:
    name: str
    records: list[Sent] = field(default_factory=list)
    fate: Fate = Fate.UNKNOWN
    """As far as its application was told."""


class TransactionsAreWhole(Invariant):
    """Who reads what is committed gets all of a transaction or nothing, as its writer was told."""

    def __init__(self) -> None:
        self._transactions: list[Transaction] = []
        self._of: dict[tuple[TopicPartition, bytes], Transaction] = {}
        self._seen: dict[str, set[tuple[TopicPartition, bytes]]] = {}

    def begun(self, transaction: Transaction) -> None:
        self._transactions.append(transaction)

    def written(self, transaction: Transaction, record: Sent) -> None:
        transaction.records.append(record)
        self._of[record.key, record.value] = transaction

    def read_committed(self, reader: str, key: TopicPartition, value: bytes) -> None:
        seen = self._seen.setdefault(reader, set())
        if (key, value) in seen:
            raise self.violated(f"{reader} got {value[:40]!r} of {key} twice")
        seen.add((key, value))
        transaction = self._of.get((key, value))
        if transaction is not None and transaction.fate is Fate.ABORTED:
            raise self.violated(f"{reader} got {value[:40]!r}: {transaction.name} was aborted")

    def at_the_very_end(self, committed: Iterable[tuple[TopicPartition, bytes]]) -> None:
        there = set(committed)
        for transaction in self._transactions:
            found = [(it.key, it.value) in there for it in transaction.records]
            if all(found) and (found == [] or transaction.fate is not Fate.ABORTED):
                continue
            if not any(found) and transaction.fate is not Fate.COMMITTED:
                continue
            raise self.violated(
                f"{transaction.name}, {transaction.fate.value} to its application, has "
                f"{sum(found)} of its {len(found)} records"
            )
        for reader, seen in self._seen.items():
            if gone := seen - there:
                raise self.violated(f"{reader} got {len(gone)} records that were never committed")


class Application(Actor):
    """Instances of one program; a new one may begin while the last has not noticed yet."""

    def __init__(self, workload: TransactionalWorkload, name: str) -> None:
        super().__init__(workload, name)
        self._whole = workload.whole
        self.stopping = False
        self.committed = 0
        self._instances = 0
        self._running = 0
        self._task = self.process.spawn(self._live())

    @property
    def has_ended(self) -> bool:
        return self._task.done() and not self._running

    async def _live(self) -> None:
        while not self.stopping:
            if self._running < MOST_INSTANCES:
                self._running += 1
                self._instances += 1
                self.process.spawn(self._run(f"{self.name}.{self._instances}"))
            await self.pause(LIFE_S)

    async def _run(self, instance: str) -> None:
        client = self.client(api_timeout_ms=TIMEOUT_MS, delivery_timeout_ms=TIMEOUT_MS)
        transactor = client.core.transactor(self.name, TIMEOUT_MS, client.now_ms)
        number = 0
        try:
            await client.run(transactor.begin())
            while not self.stopping:
                number += 1
                transaction = Transaction(f"{instance}/{number}")
                await self._transact(client, transactor, instance, transaction)
                await self.pause(PAUSE_S)
        except (KafkaError, RuntimeError) as error:
            # Another instance may have taken over, so this one doesn't ask for its place again.
            self.world.trace.note(f"{instance} ends: {error}")
        finally:
            self._running -= 1
            await client.close()

    async def _transact(
        self, client: SimClient, transactor: Transactor, instance: str, transaction: Transaction
    ) -> None:
        self._whole.begun(transaction)
        keys = self.chance.sample(self.shape.keys, self.chance.randint(1, len(self.shape.keys)))
        try:
            for position, key in enumerate(keys):
                value = f"{transaction.name}/{position}/".encode()
                record = Sent(instance, int(transaction.name.rpartition("/")[2]), key, value)
                self.judges.sent(record)
                self._whole.written(transaction, record)
                now_ms = self.machine.clock.now_ms()
                await client.send(
                    key[0], value, partition=key[1], timestamp_ms=now_ms, transactor=transactor
                )
                await self.pause(PAUSE_S / 2)
            if self.chance.random() < ABORTED_SHARE:
                await client.run(transactor.abort())
                self._decided(transaction, Fate.ABORTED)
                await client.run(transactor.begin())
            else:
                await client.run(transactor.commit({}))
                self._decided(transaction, Fate.COMMITTED)
        except (KafkaError, RuntimeError):
            await client.run(transactor.abort())  # of what may have been committed
            raise

    def _decided(self, transaction: Transaction, fate: Fate) -> None:
        transaction.fate = fate
        self.committed += fate is Fate.COMMITTED
        self.world.trace.note(f"{transaction.name} is {fate.value}")


class CommittedReader(Actor):
    def __init__(self, workload: TransactionalWorkload, name: str) -> None:
        super().__init__(workload, name)
        self._whole = workload.whole
        self._positions: dict[TopicPartition, int] = dict.fromkeys(self.shape.keys, 0)
        self.process.spawn(self._read())

    async def _read(self) -> None:
        while True:
            client = self.client(isolation_level=READ_COMMITTED)
            try:
                async for chunk in client.fetch(self._positions):
                    key = chunk.topic, chunk.partition
                    for record in read_records(chunk):
                        self._whole.read_committed(self.name, key, record.value or b"")
                    self._positions[key] = chunk.next_offset
            except KafkaError as error:
                self.world.trace.note(f"can't fetch what is committed: {error}")
            except Violation as violation:
                self.world.loop.fail(violation)
                raise
            await client.close()
            await self.pause(PAUSE_S)


class TransactionalWorkload(Workload):
    """The other clients as well, and applications that write to the same partitions."""

    def __init__(
        self, world: World, judges: Judges, bootstrap: str, shape: Shape, applications: int
    ) -> None:
        super().__init__(world, judges, bootstrap, shape)
        self.whole = TransactionsAreWhole()
        self._count = applications
        self.applications: list[Application] = []
        self.readers: list[CommittedReader] = []

    def start(self) -> None:
        super().start()
        self.applications = [Application(self, f"application{n}") for n in range(self._count)]
        self.readers = [CommittedReader(self, "reader0")]

    @property
    def actors(self) -> list[Actor]:
        return [*super().actors, *self.applications, *self.readers]

    @property
    def acknowledged(self) -> int:
        return super().acknowledged + sum(it.committed for it in self.applications)

    def stop_producing(self) -> None:
        super().stop_producing()
        for application in self.applications:
            application.stopping = True

    @property
    def is_settled(self) -> bool:
        return super().is_settled and all(it.has_ended for it in self.applications)

    async def judge_committed(self, ends: dict[TopicPartition, int]) -> None:
        """Reads to the end, so no transaction may be open any more."""

        async def read() -> list[tuple[TopicPartition, bytes]]:
            client = self._admin.client(isolation_level=READ_COMMITTED)
            found = []
            positions = dict.fromkeys(self.shape.keys, 0)
            async for chunk in client.fetch(positions, stop_at=ends):
                key = chunk.topic, chunk.partition
                found += [(key, record.value or b"") for record in read_records(chunk)]
            await client.close()
            return found

        self.whole.at_the_very_end(await self._admin.process.spawn(read()))
