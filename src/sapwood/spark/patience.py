"""How long the transactions of a batch's tasks may be open.

Not long, as readers wait for those of a query that has died. But Spark gives a batch that took too
long again as it was, so then it gets as much time as there is: that is noted at the coordinator, as
one more transaction of the batch, which holds nothing and is forgotten with the batch's others.
"""

from __future__ import annotations

from sapwood.client import ErrorCode, KafkaClient, KafkaError
from sapwood.client.calls import TRANSACTION, Coordinator
from sapwood.client.transaction_groups import child_id
from sapwood.spark.sink_options import JOB_TIMEOUT_MS, SinkOptions
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct

# What is said of a transaction that has been ended by its timeout or by a later attempt.
OVER = frozenset(
    {
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
    }
)


def timeout_ms(client: KafkaClient, options: SinkOptions, query: str, batch_id: int) -> int:
    """As the options have it; the longest, if that was too short for this batch."""
    if options.timeout_ms >= JOB_TIMEOUT_MS:
        return options.timeout_ms
    names = [_note(query, batch_id)]
    place = Coordinator(TRANSACTION, query)
    answer = client.request(Api.DESCRIBE_TRANSACTIONS, Struct(transactional_ids=names), place)
    (found,) = answer.transaction_states
    return options.timeout_ms if found.error_code else JOB_TIMEOUT_MS


def ask_for_more(client: KafkaClient, options: SinkOptions, query: str, batch_id: int) -> bool:
    """It took too long: whether it gets more time when it comes again."""
    try:
        if timeout_ms(client, options, query, batch_id) >= JOB_TIMEOUT_MS:
            return False
        note = client.core.transactor(_note(query, batch_id), JOB_TIMEOUT_MS, client.now_ms)
        client.run(note.begin())
    except KafkaError:  # nodes may admit less
        return False
    return True


def _note(query: str, batch_id: int) -> str:
    return f"{child_id(query, batch_id)}/late"
