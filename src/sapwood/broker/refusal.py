"""How one item of an answer says what was wrong with it."""

from sapwood.wire.codec import Struct
from sapwood.wire.errors import KafkaError

MAX_MESSAGE_CHARACTERS = 1000
"""A message may quote the request, and older versions have room for 32 KiB in a string."""


def refuse(result: Struct, error: KafkaError) -> None:
    result.error_code = int(error.code)
    result.error_message = error.message[:MAX_MESSAGE_CHARACTERS]
