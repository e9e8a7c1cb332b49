"""What an edge tells about its outbox, to everybody. Only one that has an outbox offers this."""

from sapwood.wire.private.words import Message, boolean, int16, int32, int64, string


class OutboxRequest(Message):
    pass


class QueuedPartition(Message):
    topic: str = string()
    partition: int = int32()
    records: int = int64()
    size_bytes: int = int64()


class OutboxResponse(Message):
    error_code: int = int16(0)
    error_message: str | None = string(None)
    node_id: int = int32()
    is_cut_off: bool = boolean()
    size_bytes: int = int64()
    limit_bytes: int = int64()
    delivered_total: int = int64()
    """Records, since this edge was started; and so for the next two."""
    refused_total: int = int64()
    aside_total: int = int64()
    """What the cluster refused for good, and is kept beside the outbox."""
    partitions: tuple[QueuedPartition, ...] = ()
