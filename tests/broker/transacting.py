"""A transactional producer as requests, one by one."""

from typing import Any

from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError
from tests.broker.asking import Asking, batch
from tests.helpers import eventually_on_loop

TIMEOUT_MS = 60_000


class Producer:
    def __init__(self, asking: Asking, name: str = "app") -> None:
        self.asking = asking
        self.name = name
        self.producer_id = -1
        self.epoch = -1
        self.sequences: dict[tuple[str, int], int] = {}

    async def find(self) -> None:
        """Until somebody coordinates."""
        message = Struct(key_type=1, coordinator_keys=[self.name])
        answer = await self.asking.answer(Api.FIND_COORDINATOR, 4, message)
        assert [it.error_code for it in answer.coordinators] == [0]
        await eventually_on_loop(self._is_coordinated)

    def _is_coordinated(self) -> bool:
        try:
            self.asking.broker.state.coordinators.shard("__transaction_state", self.name)
        except KafkaError:
            return False
        return True

    async def init(
        self,
        claim: tuple[int, int] = (-1, -1),
        *,
        version: int = 5,
        timeout_ms: int = TIMEOUT_MS,
        keep: bool = True,
    ) -> Struct:
        message = Struct(
            transactional_id=self.name,
            transaction_timeout=timeout_ms,
            producer_id=claim[0],
            producer_epoch=claim[1],
        )
        answer = await self.asking.answer(Api.INIT_PRODUCER_ID, version, message)
        if keep and answer.error_code == 0:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences = {}
        return answer

    async def begin(self, **options: Any) -> "Producer":
        await self.find()
        assert (await self.init(**options)).error_code == 0
        return self

    async def add(self, topic: str, *partitions: int, version: int = 3) -> list[int]:
        message = Struct(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[Struct(name=topic, partitions=list(partitions or (0,)))],
        )
        answer = await self.asking.answer(Api.ADD_PARTITIONS_TO_TXN, version, message)
        [result] = answer.results_by_topic_v3_and_below
        return [it.partition_error_code for it in result.results_by_partition]

    async def added(self, topic: str, *partitions: int) -> None:
        """Once the last transaction is complete."""
        codes = await self.add(topic, *partitions)
        while ErrorCode.CONCURRENT_TRANSACTIONS in codes:
            codes = await self.add(topic, *partitions)
        assert set(codes) == {0}

    async def send(self, topic: str, *values: bytes, partition: int = 0) -> Struct:
        sequence = self.sequences.get((topic, partition), 0)
        self.sequences[topic, partition] = sequence + len(values)
        records = batch(
            *values,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        return await self.asking.produced(
            topic, records, partition=partition, transactional_id=self.name
        )

    async def end(self, committed: bool, *, version: int = 4) -> int:
        message = Struct(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=committed,
        )
        code: int = (await self.asking.answer(Api.END_TXN, version, message)).error_code
        return code

    async def describe(self) -> Struct:
        message = Struct(transactional_ids=[self.name])
        answer = await self.asking.answer(Api.DESCRIBE_TRANSACTIONS, 0, message)
        [found] = answer.transaction_states
        return found  # type: ignore[no-any-return]

    async def settled(self, state: str) -> Struct:
        """Until all its markers are written."""
        while True:
            found = await self.describe()
            if found.transaction_state == state:
                return found
