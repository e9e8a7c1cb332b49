"""What the client makes of error codes: which call for fresh metadata, and words for people."""

from __future__ import annotations

from sapwood.wire.errors import ErrorCode, KafkaError


class ClientClosed(RuntimeError):
    """The client was closed before the call could finish."""


class NotSubscribed(LookupError):
    """There is no such durable subscription: `subscribe` first, or somebody has unsubscribed."""


class TopicGone(LookupError):
    """A topic that is read was deleted, and maybe made anew under its name."""


class NotAcknowledged(RuntimeError):
    """The message belongs to another process by now and has come again there."""


class PositionLost(LookupError):
    """Messages were deleted before this subscriber got them; the next `get` goes on behind them.

    So it does behind a batch that nobody can unpack: the cluster keeps batches as they were sent.
    To delete takes a hard limit on the topic (`subscription.hold.bytes`), a DeleteRecords request,
    or `sapwood partition recover --unsafe`: retention alone never passes a durable subscriber.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        lost_from: int,
        lost_to: int,
        *,
        goes_on_at: int | None = None,
        how: str = "are gone",
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.lost_from = lost_from
        self.lost_to = lost_to  # behind the last one that is gone
        self.goes_on_at = lost_to if goes_on_at is None else goes_on_at
        super().__init__(
            f"topic {topic}, partition {partition}: offsets {lost_from} to {lost_to - 1} {how}; "
            f"the next get goes on at {self.goes_on_at}"
        )


# The view of the cluster is out of date: look again before the next try.
STALE_VIEW = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)

# Asked too early or at the wrong broker: the same request will do somewhere else, or soon.
MISPLACED = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)

_ADVICE = {
    ErrorCode.OFFSET_OUT_OF_RANGE: (
        "the offset isn't in the log: start from the beginning or the end"
    ),
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "no such topic or partition: create it first",
    ErrorCode.LEADER_NOT_AVAILABLE: "the partition has no leader yet: try again in a moment",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "the partition's leader has moved: try again in a moment",
    ErrorCode.REQUEST_TIMED_OUT: "the broker took too long: try again, or raise the timeout",
    ErrorCode.MESSAGE_TOO_LARGE: "larger than the topic's max.message.bytes: raise it or send less",
    ErrorCode.INVALID_TOPIC_EXCEPTION: (
        "not a topic name: use up to 249 letters, digits, dots, dashes and underscores"
    ),
    ErrorCode.NOT_ENOUGH_REPLICAS: "too few replicas are alive: bring nodes back, then try again",
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: (
        "stored, but on too few replicas: bring nodes back, then try again"
    ),
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "not allowed on this topic: ask for an ACL",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "not allowed on this cluster: ask for an ACL",
    ErrorCode.UNSUPPORTED_VERSION: "the broker is too old or too new for this request",
    ErrorCode.TOPIC_ALREADY_EXISTS: "the topic exists: choose another name, or alter it",
    ErrorCode.INVALID_PARTITIONS: (
        "not a valid number of partitions: it must be positive and can only grow"
    ),
    ErrorCode.INVALID_REPLICATION_FACTOR: "more replicas than nodes: ask for fewer",
    ErrorCode.INVALID_CONFIG: "the configuration isn't valid: check names and values",
    ErrorCode.NOT_CONTROLLER: "the controller has moved: try again in a moment",
    ErrorCode.KAFKA_STORAGE_ERROR: "the broker's disk failed or is full: look at its log",
    ErrorCode.INVALID_RECORD: "the broker refuses the record: a compacted topic needs keys",
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: "records sent before these are missing at the broker",
    ErrorCode.CORRUPT_MESSAGE: "the records arrived damaged: try again",
    ErrorCode.TOPIC_DELETION_DISABLED: "the broker is configured not to delete topics",
}


def error_for(code: int, subject: str, said: str | None = None) -> KafkaError:
    """An error about `subject`, in the broker's words (`said`) if it gave any."""
    try:
        known = ErrorCode(code)
    except ValueError:
        return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{subject}: unknown error code {code}")
    words = said or _ADVICE.get(known) or known.name.lower().replace("_", " ")
    return KafkaError(known, f"{subject}: {words}")


def is_retriable(code: int) -> bool:
    return code in ErrorCode.__members__.values() and ErrorCode(code).retriable
