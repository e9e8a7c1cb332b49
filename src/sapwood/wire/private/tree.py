"""The tree: links between an edge and its parent, and what is told to the supervisor."""

from sapwood.wire.private.words import Message, boolean, int8, int16, int32, int64, string


class TreePlace(Message):
    node_id: int = int32()
    host: str = string()
    port: int = int32()


class TreeClaim(Message):
    """One that hangs from `father`, by which of its attachments."""

    node_id: int = int32()
    host: str = string()
    port: int = int32()
    father: int = int32()
    incarnation: int = int64()
    attachment: int = int64()
    healing_ms: int = int32(0)
    load: int = int32(0)


class AttachRequest(Message):
    """A child asks, and asks again: the answer comes with news, or after a beat."""

    node_id: int = int32()
    host: str = string()
    port: int = int32()
    incarnation: int = int64()
    attachment: int = int64()
    number: int = int64()
    renewing: bool = boolean()
    feasible_beacon: int = int64()
    feasible_depth: int = int32()
    wanted: int = int64(-1)
    seen: int = int64(-1)
    claims: tuple[TreeClaim, ...] | None = None
    healing_ms: int = int32(0)
    load: int = int32(0)


class AttachResponse(Message):
    """Refusal 0: the asker is a child. A depth of -1: this node has no way up at present.

    Cut off: a core node that has been without a controller for long.
    """

    error_code: int = int16(0)
    error_message: str | None = string(None)
    refusal: int = int8(0)
    version: int = int64(0)
    beacon: int = int64(-1)
    depth: int = int32(-1)
    ancestors: tuple[TreePlace, ...] = ()
    cores: tuple[TreePlace, ...] = ()
    siblings: tuple[TreePlace, ...] = ()
    is_cut_off: bool = boolean(False)


class NamedPort(Message):
    name: str = string()
    port: int = int32()


class RegisterEdgeRequest(Message):
    """An edge id of -1 asks for one. A wish is an id or host:port; empty is none."""

    edge_id: int = int32(-1)
    host: str = string()
    port: int = int32()
    ports: tuple[NamedPort, ...] = ()
    wish: str = string("")


class RegisterEdgeResponse(Message):
    """The father, and where it is."""

    error_code: int = int16(0)
    error_message: str | None = string(None)
    edge_id: int = int32(-1)
    father: int = int32(-1)
    host: str = string("")
    port: int = int32(-1)


class ConfirmEdgeRequest(Message):
    """Each is an id or host:port."""

    father: str = string()
    child: str = string()


class ConfirmEdgeResponse(Message):
    error_code: int = int16(0)
    error_message: str | None = string(None)


class ReportDownRequest(Message):
    """Each is an id or host:port."""

    reporter: str = string()
    node: str = string()


class ReportDownResponse(Message):
    error_code: int = int16(0)
    error_message: str | None = string(None)


class ReportTreeRequest(Message):
    """A core node tells all that hang below it."""

    load: int = int32(0)
    claims: tuple[TreeClaim, ...] = ()


class NodeLoad(Message):
    node_id: int = int32()
    load: int = int32()


class ReportTreeResponse(Message):
    error_code: int = int16(0)
    error_message: str | None = string(None)
    loads: tuple[NodeLoad, ...] = ()


class DescribeTreeRequest(Message):
    pass


class DescribeTreeResponse(Message):
    """The tree for people, and as JSON."""

    error_code: int = int16(0)
    error_message: str | None = string(None)
    drawing: str = string("")
    document: str = string("")
