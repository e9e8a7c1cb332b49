"""Transactions that end together."""

from sapwood.wire.private.words import Message, boolean, int16, int64, string


class EndingChild(Message):
    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()


class EndTxnGroupRequest(Message):
    """One batch of a query, written by many: `query␟batch/…` are its transactional ids.

    All children commit, or none; whatever else the query has open up to this batch is aborted. Not
    committed, all of it is aborted. Batch -1 changes nothing: it asks for the last one.
    """

    query: str = string()
    batch_id: int = int64()
    children: tuple[EndingChild, ...] = ()
    committed: bool = boolean(default=True)


class EndTxnGroupResponse(Message):
    """Already done: a batch up to `last_batch_id` was asked for, and nothing has changed."""

    error_code: int = int16(0)
    error_message: str | None = string(None)
    last_batch_id: int = int64(-1)
    already_done: bool = boolean(default=False)
