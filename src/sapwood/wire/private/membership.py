"""Who belongs to the cluster: the proof of it, joining, leaving, and the last resort."""

from sapwood.wire.private.replication import GroupVoter
from sapwood.wire.private.words import Message, binary, int8, int16, int32, int64, string


class AuthenticateRequest(Message):
    """First with a nonce, then with a proof. The node id is -1 for a tool."""

    step: int = int8()
    node_id: int = int32()
    nonce: bytes = binary(b"")
    proof: bytes = binary(b"")


class AuthenticateResponse(Message):
    """The node id is that of the node which answers; -1 while it has none."""

    error_code: int = int16(0)
    error_message: str | None = string(None)
    node_id: int = int32(-1)
    nonce: bytes = binary(b"")
    proof: bytes = binary(b"")


class JoiningListener(Message):
    name: str = string()
    host: str = string()
    port: int = int32()


class JoinRequest(Message):
    """A node id of -1 asks for one."""

    cluster_id: str | None = string()
    node_id: int = int32()
    incarnation: int = int64()
    listeners: tuple[JoiningListener, ...]
    rack: str | None = string(None)
    version: str = string()


class Member(Message):
    node_id: int = int32()
    host: str = string()
    port: int = int32()


class JoinResponse(Message):
    """The metadata voters are those that founded the cluster."""

    error_code: int = int16(0)
    error_message: str | None = string(None)
    cluster_id: str = string("")
    node_id: int = int32(-1)
    metadata_voters: tuple[GroupVoter, ...] = ()
    members: tuple[Member, ...] = ()


class ChangeNodeRequest(Message):
    """Actions: 1 drain, 2 undrain, 3 remove."""

    node_id: int = int32()
    action: int = int8()


class ChangeNodeResponse(Message):
    error_code: int = int16(0)
    error_message: str | None = string(None)


class RecoverPartitionRequest(Message):
    """Unsafe: the node that is asked goes on alone with what it has."""

    topic: str = string()
    partition: int = int32()


class RecoverPartitionResponse(Message):
    error_code: int = int16(0)
    error_message: str | None = string(None)
