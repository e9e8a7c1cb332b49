"""What durable subscriptions hold back of a partition."""

from sapwood.wire.private.words import Message, int16, int32, int64, string


class HeldOffsetRequest(Message):
    topic: str = string()
    partition: int = int32()


class HeldOffsetResponse(Message):
    """The lowest position of a durable subscription; -1 if there is none."""

    error_code: int = int16(0)
    error_message: str | None = string(None)
    offset: int = int64(-1)
