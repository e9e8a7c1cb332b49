"""The first batch of a transaction waits until its coordinator has said that there is one.

What the same producer sends to the same partition meanwhile waits behind it, in its order. If the
coordinator can't be asked, all of it is refused, and then nothing of it is let in but the first
batch again: a partition that doesn't know the producer would let it start with the second.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from sapwood.replica import Guard, Partition, is_in_progress
from sapwood.wire.batch import BatchHeader
from sapwood.wire.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

MAX_WAITING = 64
"""Batches of one producer at one partition. Clients send five before they wait for an answer."""
MAX_REFUSED = 10_000
VERIFY_S = 10.0

Verify = Callable[[str, int, int, str, int], Awaitable[None]]
"""(transactional id, producer id, producer epoch, topic, partition): returns if the partition is
part of that transaction, which is in progress; else raises what the producer is to be told."""

# Clients take these for the end of a transaction, or look for another leader. What they ought to do
# is to send again; Kafka tells them so with an error that every client takes for that.
_SEND_AGAIN = ErrorCode.NOT_ENOUGH_REPLICAS
_PASSING = {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT,
}


async def unverified(
    transactional_id: str, producer_id: int, producer_epoch: int, topic: str, index: int
) -> None:
    raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "Nobody coordinates transactions yet")


class Batch(NamedTuple):
    """A batch that may have to wait."""

    transactional_id: str
    header: BatchHeader
    append: Callable[[Guard | None], None]
    """Tells its sender, whatever comes of it."""
    refuse: Callable[[KafkaError], None]


class _Refused(NamedTuple):
    guard: Guard
    producer_epoch: int
    sequence: int


_Key = tuple[Partition, int]


class Verifying:
    def __init__(self) -> None:
        self.verify: Verify = unverified
        """Set by whoever knows the coordinators."""
        self._waiting: dict[_Key, deque[Batch]] = {}
        self._tasks: dict[_Key, asyncio.Task[None]] = {}
        self._refused: dict[_Key, _Refused] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def admit(self, partition: Partition, batch: Batch) -> None:
        """Append a transactional batch, now or later; KafkaError if it has no place here."""
        key = partition, batch.header.producer_id
        waiting = self._waiting.get(key)
        if waiting is not None:
            if len(waiting) >= MAX_WAITING:
                raise KafkaError(
                    _SEND_AGAIN,
                    f"{MAX_WAITING} batches of this producer wait for the coordinator already",
                )
            waiting.append(batch)
        elif not _has_to_be_verified(partition, batch.header):
            self._refused.pop(key, None)
            batch.append(None)
        else:
            self._check_order(key, batch.header)
            self._waiting[key] = deque([batch])
            self._tasks[key] = asyncio.ensure_future(self._run(key, self._waiting[key]))

    async def confirm(
        self, partition: Partition, transactional_id: str, producer_id: int, producer_epoch: int
    ) -> None:
        """For a coordinator that is to append to its own log as part of a transaction, which it may
        do in the turn of the loop in which this returns; KafkaError if there is none."""
        if is_in_progress(partition.log, producer_id, producer_epoch):
            return
        guard = partition.guard_of(producer_id)
        place = partition.topic, partition.index
        await self.verify(transactional_id, producer_id, producer_epoch, *place)
        if guard != partition.guard_of(producer_id):
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "The transaction has just ended")

    def close(self) -> None:
        """Refuse what waits."""
        error = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "This node is stopping")
        for waiting in self._waiting.values():
            while waiting:
                waiting.popleft().refuse(error)
        for task in self._tasks.values():
            task.cancel()

    def _check_order(self, key: _Key, header: BatchHeader) -> None:
        refused = self._refused.get(key)
        if refused is None:
            return
        partition, producer_id = key
        if (
            refused.guard == partition.guard_of(producer_id)
            and refused.producer_epoch == header.producer_epoch
            and refused.sequence != header.base_sequence
        ):
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Producer {producer_id} sends sequence {header.base_sequence}; the batch with "
                f"{refused.sequence} was refused, and has to come first",
            )
        del self._refused[key]

    async def _run(self, key: _Key, waiting: deque[Batch]) -> None:
        partition, producer_id = key
        try:
            while waiting:
                header = waiting[0].header
                guard = partition.guard_of(producer_id)
                if _has_to_be_verified(partition, header):
                    error = await self._asked(partition, waiting[0])
                    if error is not None:
                        if error.code == _SEND_AGAIN:
                            self._remember(key, guard, header)
                        while waiting:
                            waiting.popleft().refuse(error)
                        return
                waiting.popleft().append(guard)
        finally:
            del self._waiting[key], self._tasks[key]

    async def _asked(self, partition: Partition, batch: Batch) -> KafkaError | None:
        header = batch.header
        try:
            async with asyncio.timeout(VERIFY_S):
                await self.verify(
                    batch.transactional_id,
                    header.producer_id,
                    header.producer_epoch,
                    partition.topic,
                    partition.index,
                )
        except KafkaError as error:
            if error.code in _PASSING:
                return KafkaError(_SEND_AGAIN, error.message)
            if error.code == ErrorCode.PRODUCER_FENCED:
                # What a coordinator calls so has another name for those who produce.
                return KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, error.message)
            return error
        except TimeoutError:
            return KafkaError(_SEND_AGAIN, "The coordinator doesn't answer")
        except Exception:
            logger.exception("%s: a transaction could not be verified", partition)
            return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
        return None

    def _remember(self, key: _Key, guard: Guard, header: BatchHeader) -> None:
        self._refused[key] = _Refused(guard, header.producer_epoch, header.base_sequence)
        if len(self._refused) > MAX_REFUSED:
            del self._refused[next(iter(self._refused))]


def _has_to_be_verified(partition: Partition, header: BatchHeader) -> bool:
    log, producer_id = partition.log, header.producer_id
    # A producer that was forgotten in the middle of it: nobody knows in which epoch that began.
    is_known = log.producers.find(producer_id) is not None
    in_progress = is_known and log.transactions.first_offset(producer_id) is not None
    return not in_progress and log.producers.original(header) is None
