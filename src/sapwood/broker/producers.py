"""Ids for producers, for the nodes that give them out."""

from sapwood.broker.refusal import refuse
from sapwood.broker.state import BrokerState
from sapwood.server import Request
from sapwood.wire.codec import Struct
from sapwood.wire.errors import KafkaError


async def reserve_producer_ids(state: BrokerState, request: Request, message: Struct) -> Struct:
    """Another node wants a block for itself."""
    answer = Struct(error_code=0, error_message=None, first_id=0, next_id=0)
    try:
        block = await state.producer_ids.reserve()
        answer.first_id, answer.next_id = block.start, block.stop
    except KafkaError as error:
        refuse(answer, error)
    return answer
