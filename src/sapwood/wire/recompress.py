"""A batch in another codec: records are one compressed block, so none needs to be looked at."""

import struct

from crc32c import crc32c

from sapwood.wire import batch
from sapwood.wire.batch import BatchHeader
from sapwood.wire.codec import Buffer
from sapwood.wire.compression import compress, decompress

_LENGTH_AT = 8
_CRC_AT = 17
_ATTRIBUTES_AT = 21
_CODEC_BITS = 0x07


def recompress(data: Buffer, header: BatchHeader, codec: int, limit: int) -> bytearray:
    """The batch at the start of `data` in `codec`; MalformedMessage past `limit` bytes."""
    body = decompress(header.compression, memoryview(data)[batch.HEADER_SIZE : header.size], limit)
    payload = compress(codec, body)
    result = bytearray(memoryview(data)[: batch.HEADER_SIZE])
    struct.pack_into(">i", result, _LENGTH_AT, batch.HEADER_SIZE - _LENGTH_AT - 4 + len(payload))
    struct.pack_into(">h", result, _ATTRIBUTES_AT, header.attributes & ~_CODEC_BITS | codec)
    result += payload
    struct.pack_into(">I", result, _CRC_AT, crc32c(memoryview(result)[_ATTRIBUTES_AT:]))
    return result
