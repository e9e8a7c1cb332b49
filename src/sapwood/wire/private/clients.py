"""Producers and consumers that the cluster knows by name, and ids for those that it does not."""

from sapwood.wire.private.words import Message, int8, int16, int32, int64, string


class ChangeClientRequest(Message):
    """Kinds: 1 producer, 2 consumer. Actions: 1 register, 2 remove. Partition -1 is all of them."""

    kind: int = int8()
    action: int = int8()
    name: str = string()
    topic: str = string()
    partition: int = int32(-1)


class ChangeClientResponse(Message):
    error_code: int = int16(0)
    error_message: str | None = string(None)


class ListClientsRequest(Message):
    pass


class KnownClient(Message):
    name: str = string()
    topic: str = string()
    partition: int = int32(-1)


class ListClientsResponse(Message):
    producers: tuple[KnownClient, ...] = ()
    consumers: tuple[KnownClient, ...] = ()


class ReserveProducerIdsRequest(Message):
    pass


class ReserveProducerIdsResponse(Message):
    """From the first to before the next."""

    error_code: int = int16(0)
    error_message: str | None = string(None)
    first_id: int = int64(0)
    next_id: int = int64(0)
