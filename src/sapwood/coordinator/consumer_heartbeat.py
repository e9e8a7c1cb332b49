"""One heartbeat of the newer protocol, checked: what a member says, and what it leaves unsaid."""

from typing import NamedTuple

from sapwood.coordinator.assignors import ASSIGNORS, Assignment
from sapwood.coordinator.consumer_member import (
    JOINING,
    LEAVING_FOR_A_WHILE,
    MemberMetadata,
)
from sapwood.coordinator.consumer_records import assignment_of
from sapwood.coordinator.topic_pattern import InvalidPattern, TopicPattern
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError

UNCHANGED = -1
MAX_NAME_BYTES = 1024
MAX_OWNED = 100_000
MAX_SUBSCRIPTION_CHARACTERS = 100_000
"""Of the topics' names together. Subscriptions and names are stored."""


class Heartbeat(NamedTuple):
    """None, and a time of -1, mean that nothing has changed since the last one."""

    member_id: str
    member_epoch: int
    instance_id: str | None
    rack_id: str | None
    rebalance_timeout_ms: int
    subscribed_topic_names: tuple[str, ...] | None
    subscribed_topic_regex: str | None
    server_assignor: str | None
    owned: Assignment | None
    client_id: str
    client_host: str

    @property
    def is_leaving(self) -> bool:
        return self.member_epoch < JOINING

    @property
    def is_full(self) -> bool:
        """It tells everything, so it may know nothing: it is told everything as well."""
        return self.member_epoch == JOINING or (
            self.rebalance_timeout_ms != UNCHANGED
            and self.owned is not None
            and (self.subscribed_topic_names is not None or self.subscribed_topic_regex is not None)
        )

    def metadata(self, before: MemberMetadata | None) -> MemberMetadata:
        """The member as it is now."""
        names, timeout_ms = self.subscribed_topic_names, self.rebalance_timeout_ms
        if before is None:
            before = MemberMetadata(None, None, "", "", (), None, UNCHANGED, None)
        return MemberMetadata(
            instance_id=self.instance_id or before.instance_id,
            rack_id=self.rack_id or before.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=before.subscribed_topic_names if names is None else names,
            subscribed_topic_regex=(
                before.subscribed_topic_regex
                if self.subscribed_topic_regex is None
                else self.subscribed_topic_regex or None
            ),
            rebalance_timeout_ms=(
                before.rebalance_timeout_ms if timeout_ms == UNCHANGED else timeout_ms
            ),
            server_assignor=self.server_assignor or before.server_assignor,
        )


def checked_heartbeat(request: Struct, client_id: str, client_host: str) -> Heartbeat:
    """KafkaError if it makes no sense by itself, whatever the group is like."""
    owned = request.topic_partitions or ()
    too_many = sum(len(topic.partitions) for topic in owned) > MAX_OWNED
    _refuse_if(too_many, f"A member has at most {MAX_OWNED} partitions")
    names = request.subscribed_topic_names
    regex = getattr(request, "subscribed_topic_regex", None)
    beat = Heartbeat(
        request.member_id,
        request.member_epoch,
        request.instance_id,
        request.rack_id,
        request.rebalance_timeout,
        None if names is None else tuple(sorted(set(names))),
        regex,
        request.server_assignor,
        None if request.topic_partitions is None else assignment_of(request.topic_partitions),
        client_id,
        client_host,
    )
    _refuse_if(not beat.member_id, "MemberId can't be empty")
    _refuse_if(beat.instance_id == "", "InstanceId can't be empty")
    _refuse_if(beat.rack_id == "", "RackId can't be empty")
    _refuse_if(beat.member_epoch < LEAVING_FOR_A_WHILE, "MemberEpoch is below -2")
    names_given = (beat.member_id, beat.instance_id or "", beat.rack_id or "")
    too_long = max(len(it.encode()) for it in names_given) > MAX_NAME_BYTES
    _refuse_if(too_long, f"Ids have at most {MAX_NAME_BYTES} bytes")
    subscription = sum(map(len, names or ()))
    _refuse_if(subscription > MAX_SUBSCRIPTION_CHARACTERS, "The subscription is too large")
    if beat.member_epoch == JOINING:
        _refuse_if(beat.rebalance_timeout_ms < 0, "RebalanceTimeoutMs must be given on joining")
        _refuse_if(
            beat.owned is None or bool(beat.owned), "TopicPartitions must be empty on joining"
        )
        _refuse_if(names is None and regex is None, "A subscription must be given on joining")
    _refuse_if(
        beat.member_epoch == LEAVING_FOR_A_WHILE and beat.instance_id is None,
        "InstanceId must be given by a static member that leaves",
    )
    if beat.server_assignor is not None and beat.server_assignor not in ASSIGNORS:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"There is no assignor {beat.server_assignor[:100]!r}: "
            f"use one of {', '.join(ASSIGNORS)}",
        )
    if regex:
        _check_pattern(regex)
    return beat


def _refuse_if(wrong: bool, message: str) -> None:
    if wrong:
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def _check_pattern(regex: str) -> None:
    try:
        TopicPattern(regex)
    except InvalidPattern as error:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION, f"{regex[:100]!r} can't be used: {error}"
        ) from error
