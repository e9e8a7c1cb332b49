"""Producers and consumers that registered by name: part of the metadata, so known to every node."""

from sapwood.broker.refusal import refuse
from sapwood.broker.state import BrokerState
from sapwood.metadata import registry
from sapwood.server import Request
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError

PRODUCER, CONSUMER = 1, 2
REGISTER, REMOVE = 1, 2

_COMMANDS = {
    (PRODUCER, REGISTER): registry.register_producer,
    (PRODUCER, REMOVE): registry.remove_producer,
    (CONSUMER, REGISTER): registry.register_consumer,
    (CONSUMER, REMOVE): registry.remove_consumer,
}


async def change(state: BrokerState, request: Request, message: Struct) -> Struct:
    answer = Struct(error_code=0, error_message=None)
    try:
        command = _COMMANDS.get((message.kind, message.action))
        if command is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Unknown kind of client, or action")
        async with state.store.changing() as image:
            records = command(image, message.name, message.topic, message.partition)
            await state.store.commit(records)
    except KafkaError as error:
        refuse(answer, error)
    return answer


def list_all(state: BrokerState, request: Request, message: Struct) -> Struct:
    return Struct(
        producers=[Struct(**it._asdict()) for it in state.image.producers],
        consumers=[Struct(**it._asdict()) for it in state.image.consumers],
    )
