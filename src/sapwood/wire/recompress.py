"""A batch in another codec: records are one compressed block, so none needs to be looked at."""

import struct

from crc32c import crc32c

from sapwood.wire import batch
from sapwood.wire.batch import BatchHeader
from sapwood.wire.codec import Buffer
from sapwood.wire.compression import compress, decompress

_LENGTH_POSITION = 8


def recompress(data: Buffer, header: BatchHeader, codec: int, limit: int) -> bytearray:
    """The batch at the start of `data` in `codec`; MalformedMessage past `limit` bytes."""
    body = decompress(header.compression, memoryview(data)[batch.HEADER_SIZE : header.size], limit)
    payload = compress(codec, body)
    result = bytearray(memoryview(data)[: batch.HEADER_SIZE])
    struct.pack_into(
        ">i", result, _LENGTH_POSITION, batch.HEADER_SIZE - batch.LENGTH_END + len(payload)
    )
    struct.pack_into(
        ">h", result, batch.CRC_START, header.attributes & ~batch.COMPRESSION_MASK | codec
    )
    result += payload
    struct.pack_into(
        ">I", result, batch.CRC_POSITION, crc32c(memoryview(result)[batch.CRC_START :])
    )
    return result
