"""Names of topics and their ids: the cache goes by ids, since a name may come to mean another."""

from collections.abc import Awaitable, Callable, Iterable

from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct, decode_response
from sapwood.wire.frames import decode_response_header, encode_request_frame

METADATA_VERSION = 12
NO_TOPIC_ID = bytes(16)
_LENGTH_BYTES = 4

Ask = Callable[[memoryview], Awaitable[Struct]]


class Topics:
    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self.ids: dict[str, bytes] = {}

    async def resolve(self, names: Iterable[str]) -> None:
        """Ask for those that aren't known. What doesn't exist stays unknown."""
        unknown = [it for it in names if it not in self.ids]
        if not unknown:
            return
        message = Struct(
            topics=[Struct(topic_id=NO_TOPIC_ID, name=it) for it in unknown],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        frame = b"".join(encode_request_frame(Api.METADATA, METADATA_VERSION, 0, None, message))
        answer = await self._ask(memoryview(frame)[_LENGTH_BYTES:])
        if answer.error_code or not answer.frame:
            return
        _, body = decode_response_header(Api.METADATA, METADATA_VERSION, answer.frame)
        found = decode_response(Api.METADATA, METADATA_VERSION, answer.frame, body)
        for topic in found.topics:
            if not topic.error_code:
                self.ids[topic.name] = topic.topic_id

    def forget(self, topic_id: bytes) -> None:
        """It is gone, or has another id: who names it is asked about anew."""
        for name in [name for name, known in self.ids.items() if known == topic_id]:
            del self.ids[name]
