"""What an edge answers in the cluster's place because it has an outbox."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from sapwood.edge.delivering import Delivering
from sapwood.edge.knowing import Known
from sapwood.edge.outbox import Outbox
from sapwood.edge.queueing import Queueing
from sapwood.edge.rewriting import REWRITINGS, View
from sapwood.edge.topics import Ask
from sapwood.edge.uplink import Lost, Uplink
from sapwood.server import Request
from sapwood.wire.apis import Api, can_code
from sapwood.wire.codec import Buffer, Struct, decode_request, decode_response
from sapwood.wire.frames import (
    RequestHeader,
    decode_response_header,
    encode_request_frame,
    encode_response_frame,
)

LOOK_S = 30.0
"""How often the cluster is asked what there is, beside what clients ask."""
VERSIONS_VERSION = 4
METADATA_VERSION = 12
_LENGTH_BYTES = 4

Answer = list[Buffer] | Awaitable[list[Buffer]]


class StandIn:
    def __init__(
        self, outbox: Outbox, uplink: Uplink, node_id: int, address: str, ask: Ask
    ) -> None:
        """`address` is where this edge listens; `ask` has a frame answered from above."""
        self.outbox = outbox
        self._uplink = uplink
        self._node_id = node_id
        self._ask = ask
        self._known = Known(outbox.journal)
        self._queueing = Queueing(outbox, self._known)
        self._delivering = Delivering(outbox, uplink, node_id, address)
        self._has_learnt = asyncio.Event()
        if self._known:
            self._has_learnt.set()
        self._learning = asyncio.ensure_future(self._learn())

    async def close(self) -> None:
        self._learning.cancel()
        await asyncio.gather(self._learning, return_exceptions=True)
        await self._delivering.close()
        await self.outbox.close()

    async def ready(self) -> None:
        """Until clients can be served, by the cluster or without it."""
        await self._has_learnt.wait()

    # -- answers -----------------------------------------------------------------------------

    def answer(self, request: Request, view: Callable[[Request], View]) -> Answer | None:
        """None: the cluster is to answer."""
        key = request.header.api_key
        is_cut_off = not self._uplink.is_connected
        if key == Api.PRODUCE:
            return self._queueing.produce(request, is_cut_off=is_cut_off)
        if key == Api.OUTBOX:
            return _encoded(request, request.header.api_version, self._described())
        if key == Api.API_VERSIONS:
            return self._api_versions(request)
        if key == Api.METADATA and is_cut_off and can_code(key, request.header.api_version):
            return self._metadata(request, view(request))
        return None

    async def _api_versions(self, request: Request) -> list[Buffer]:
        await self._has_learnt.wait()
        version, answer = self._known.api_versions(request.header.api_version)
        own = int(Api.OUTBOX)
        answer.api_keys.append(Struct(api_key=own, min_version=0, max_version=0))
        return _encoded(request, version, answer)

    def _metadata(self, request: Request, view: View) -> list[Buffer]:
        version = request.header.api_version
        message = decode_request(Api.METADATA, version, request.body, request.body_offset)
        wanted = None if version == 0 and not message.topics else message.topics
        answer = self._known.metadata(version, wanted)
        REWRITINGS[Api.METADATA](answer, view)
        return _encoded(request, version, answer)

    def _described(self) -> Struct:
        outbox = self.outbox
        return Struct(
            node_id=self._node_id,
            is_cut_off=not self._uplink.is_connected,
            size_bytes=outbox.size_bytes,
            limit_bytes=outbox.limit_bytes,
            delivered_total=outbox.delivered_total,
            refused_total=outbox.refused_total,
            aside_total=outbox.aside_total,
            partitions=[
                Struct(
                    topic=it.key[0],
                    partition=it.key[1],
                    records=it.records,
                    size_bytes=it.log.size_bytes,
                )
                for it in outbox
            ],
        )

    # -- what is known -----------------------------------------------------------------------

    def hear(self, header: RequestHeader, frame: memoryview) -> None:
        """An answer from above, on its way to a client."""
        if header.api_key == Api.METADATA and can_code(Api.METADATA, header.api_version):
            _, body = decode_response_header(Api.METADATA, header.api_version, frame)
            answer = decode_response(Api.METADATA, header.api_version, frame, body)
            self._known.learn_topics(answer, is_all=False)

    async def _learn(self) -> None:
        while True:
            await self._uplink.connected()
            with contextlib.suppress(Lost):
                hello = Struct(client_software_name="sapwood", client_software_version="edge")
                versions = await self._asked(Api.API_VERSIONS, VERSIONS_VERSION, hello)
                everything = Struct(
                    topics=None,
                    allow_auto_topic_creation=False,
                    include_topic_authorized_operations=False,
                )
                topics = await self._asked(Api.METADATA, METADATA_VERSION, everything)
                if versions is not None and topics is not None:
                    self._known.learn_topics(topics, is_all=True)
                    self._known.learn_versions(versions)
                    self._has_learnt.set()
            await asyncio.sleep(LOOK_S)

    async def _asked(self, api: Api, version: int, message: Struct) -> Struct | None:
        frame = b"".join(encode_request_frame(api, version, 0, None, message))
        answer = await self._ask(memoryview(frame)[_LENGTH_BYTES:])
        if answer.error_code or not answer.frame:
            return None
        _, body = decode_response_header(api, version, answer.frame)
        return decode_response(api, version, answer.frame, body)


def _encoded(request: Request, version: int, answer: Struct) -> list[Buffer]:
    header = request.header
    return encode_response_frame(header.api_key, version, header.correlation_id, answer)
