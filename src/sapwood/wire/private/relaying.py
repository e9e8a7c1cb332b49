"""A client's request on its way from an edge to whoever can answer it."""

from sapwood.wire.private.words import Message, boolean, buffers, float64, int16, string


class RelayRequest(Message):
    """The client's frame, header and body, without its length; and who the client is.

    An empty frame asks for a sign of life.
    """

    listener: str = string("")
    address: str = string("")
    principal: str | None = string(None)
    opened_after_s: float = float64(0.0)
    """From the proof of the link that this goes over to the client's connection: less than 0 if the
    client was first. Told like this, it can't be mistaken by what is held up on its way."""
    here: bool = boolean(False)
    """To be carried out by the receiver; else by whoever can, and by several if need be."""
    frame: bytes = buffers(b"")


class RelayResponse(Message):
    """The frame for the client, without its length; empty if there is an error or no answer."""

    error_code: int = int16(0)
    """REQUEST_TIMED_OUT: it may have been carried out, or not, or may yet be."""
    error_message: str | None = string(None)
    closes: bool = boolean(False)
    """Whether the client is to be disconnected after the answer."""
    frame: bytes = buffers(b"")
