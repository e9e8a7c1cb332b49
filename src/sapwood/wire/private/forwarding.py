"""A client's request, handed on to the node that can answer it."""

from sapwood.wire.private.words import Message, buffers, int16, string


class ForwardRequest(Message):
    """The client's frame, header and body, without its length; and who the client is."""

    listener: str = string()
    address: str = string()
    principal: str | None = string(None)
    frame: bytes = buffers()


class ForwardResponse(Message):
    """The frame for the client, without its length; empty if there is an error or no answer."""

    error_code: int = int16(0)
    error_message: str | None = string(None)
    frame: bytes = buffers(b"")
