"""Transactions of many writers that end as one, which Sapwood's coordinators offer.

A child's transactional id is `query␟batch/…`. Its writer leaves it open and tells somebody its
identity; that one ends all children of the batch in one step, which is done once however often it
is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sapwood.client.calls import TRANSACTION, Call, Coordinator, Router
from sapwood.client.config import ClientConfig
from sapwood.client.effects import Ticket
from sapwood.client.errors import MISPLACED, error_for
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode

NO_BATCH = -1

# The answer was lost or late: to ask again is to be told.
_RETRIED = MISPLACED | {ErrorCode.REQUEST_TIMED_OUT}


class Child(NamedTuple):
    """A transaction that was left open."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


def child_id(query: str, batch_id: int, *which: int) -> str:
    """A transactional id; what stands before the separator decides who coordinates it."""
    return f"{query}␟{'/'.join(map(str, (batch_id, *which)))}"


class GroupEnd(NamedTuple):
    last_batch_id: int
    """Of the query: up to here everything is committed; −1 if nothing is."""
    already_done: bool
    """The batch was committed before, and nothing has changed."""


def end_group(
    config: ClientConfig,
    router: Router,
    query: str,
    batch_id: int,
    children: Iterable[Child],
    committed: bool,
    now_ms: float,
) -> Ticket[GroupEnd]:
    """Commit these children and abort what else the query has open up to this batch, or abort all.

    NO_BATCH changes nothing and asks for the last batch. UNSUPPORTED_VERSION: another Kafka.
    """
    message = Struct(
        query=query,
        batch_id=batch_id,
        children=[Struct(**child._asdict()) for child in children],
        committed=committed,
    )

    def read(answer: Struct) -> GroupEnd:
        if answer.error_code:
            subject = f"batch {batch_id} of {query}"
            raise error_for(answer.error_code, subject, answer.error_message)
        return GroupEnd(answer.last_batch_id, answer.already_done)

    ticket: Ticket[GroupEnd] = Ticket()
    router.submit(
        Call(
            Api.END_TXN_GROUP,
            message,
            Coordinator(TRANSACTION, query),
            read,
            ticket,
            now_ms,
            now_ms + config.api_timeout_ms,
            retried=_RETRIED,
        )
    )
    return ticket
