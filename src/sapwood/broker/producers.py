"""InitProducerId: identities for idempotent producers."""

from sapwood.broker.refusal import refuse
from sapwood.broker.state import BrokerState
from sapwood.server import Request
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError


async def init_producer_id(state: BrokerState, request: Request, message: Struct) -> Struct:
    answer = Struct(error_code=0, producer_id=-1, producer_epoch=-1)
    try:
        if message.transactional_id is not None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "Transactions are not served; leave out transactional.id"
            )
        answer.producer_id = await state.producer_ids.take()
        answer.producer_epoch = 0
    except KafkaError as error:
        answer.error_code = int(error.code)
    return answer


async def reserve_producer_ids(state: BrokerState, request: Request, message: Struct) -> Struct:
    """Another node wants a block for itself."""
    answer = Struct(error_code=0, error_message=None, first_id=0, next_id=0)
    try:
        block = await state.producer_ids.reserve()
        answer.first_id, answer.next_id = block.start, block.stop
    except KafkaError as error:
        refuse(answer, error)
    return answer
