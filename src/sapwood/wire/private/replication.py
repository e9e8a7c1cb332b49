"""What replicas of the same groups say to each other: fetch, vote, announce, transfer.

Every message carries its sender's hybrid clock, so that clocks follow each other.
"""

from sapwood.wire.private.words import (
    Message,
    binary,
    boolean,
    buffers,
    int16,
    int32,
    int64,
    tagged,
    uuid,
)


class Group(Message):
    topic_id: bytes = uuid()
    partition: int = int32()


class GroupVoter(Message):
    node: int = int32()
    incarnation: int = int64()


class FollowedGroup(Message):
    """A group that the sender follows: what it has, and what of it is durable."""

    topic_id: bytes = uuid()
    partition: int = int32()
    epoch: int = int32()
    incarnation: int = int64()
    last_epoch: int = int32()
    fetch_offset: int = int64()
    durable_epoch: int = int32()
    durable_offset: int = int64()
    high_watermark: int = int64()


class ReplicaFetchRequest(Message):
    """Sequence 0 lists all groups of the session; later ones only those that changed.

    `seen` is the sequence that the newest answer was for which the sender had when it sent this.
    `promised` is a time that the sender's clock will never show again, not even after a restart.
    """

    hlc: int = int64()
    node_id: int = int32()
    session_id: int = int64()
    sequence: int = int32()
    seen: int = int32(-1)
    groups: tuple[FollowedGroup, ...]
    forgotten: tuple[Group, ...] = ()
    max_bytes: int = int32()
    max_wait_ms: int = int32()
    promised: int = tagged(0, int64(-1))


class FetchedGroup(Message):
    """Entries of the log as they lie on disk, or where the follower's log went another way.

    Entries follow on the position `after`: whoever is at another one has missed some.
    """

    topic_id: bytes = uuid()
    partition: int = int32()
    error_code: int = int16(0)
    epoch: int = int32()
    leader: int = int32()
    high_watermark: int = int64()
    start_offset: int = int64()
    diverging_epoch: int = int32(-1)
    diverging_offset: int = int64(-1)
    snapshot: bytes | None = binary(None)
    after_epoch: int = int32(-1)
    after_offset: int = int64(-1)
    entries: bytes | None = buffers(None)


class ReplicaFetchResponse(Message):
    """`closing`: somebody asks for closed times, so the next request should promise one."""

    error_code: int = int16(0)
    hlc: int = int64()
    session_id: int = int64()
    groups: tuple[FetchedGroup, ...]
    closing: bool = tagged(0, boolean(False))


class WantedVote(Message):
    topic_id: bytes = uuid()
    partition: int = int32()
    term: int = int32()
    pre_vote: bool = boolean()
    incarnation: int = int64()
    last_epoch: int = int32()
    end_offset: int = int64()


class ReplicaVoteRequest(Message):
    hlc: int = int64()
    node_id: int = int32()
    groups: tuple[WantedVote, ...]


class CastVote(Message):
    topic_id: bytes = uuid()
    partition: int = int32()
    term: int = int32()
    granted: bool = boolean()
    incarnation: int = int64()
    leader: int = int32()


class ReplicaVoteResponse(Message):
    hlc: int = int64()
    groups: tuple[CastVote, ...]


class AnnouncedLeader(Message):
    topic_id: bytes = uuid()
    partition: int = int32()
    epoch: int = int32()
    voters: tuple[GroupVoter, ...]
    in_sync: tuple[int, ...] = int32()
    confirmed: bool = boolean()


class AnnounceRequest(Message):
    """The groups that the sender leads: all of them if `full`, else those that changed.

    `wants`: the sender has yet to hear what the receiver leads.
    """

    hlc: int = int64()
    node_id: int = int32()
    full: bool = boolean()
    wants: bool = boolean(False)
    leaders: tuple[AnnouncedLeader, ...]


class AnnounceResponse(Message):
    hlc: int = int64()


class TransferredGroup(Message):
    topic_id: bytes = uuid()
    partition: int = int32()
    epoch: int = int32()


class TransferRequest(Message):
    """The sender wants the receiver to lead: it starts an election at once."""

    hlc: int = int64()
    node_id: int = int32()
    groups: tuple[TransferredGroup, ...]


class TransferResponse(Message):
    hlc: int = int64()
