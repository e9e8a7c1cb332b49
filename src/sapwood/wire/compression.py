"""Kafka's compression codecs; decompression never allocates more than it was allowed."""

import enum
import struct
import zlib

from sapwood.wire.encoder import Buffer
from sapwood.wire.errors import MalformedMessage


class Compression(enum.IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


# Java clients wrap raw snappy blocks into this framing, others send one raw block.
_XERIAL_MAGIC = b"\x82SNAPPY\0"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_SIZE = 32 * 1024
_BLOCK_LENGTH = struct.Struct(">i")

_ZSTD_LEVEL = 3
_ZSTD_FIRST_ROOM = 64 * 1024
_ZSTD_NO_ROOM = "failed to write whole buffer"


def compress(codec: int, data: Buffer) -> Buffer:
    match codec:
        case Compression.NONE:
            return data
        case Compression.GZIP:
            compressor = zlib.compressobj(wbits=31)
            return compressor.compress(data) + compressor.flush()
        case Compression.SNAPPY:
            return _compress_snappy(data)
        case Compression.LZ4:
            import lz4.frame

            return bytes(lz4.frame.compress(data))
        case Compression.ZSTD:
            import cramjam

            return bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL))
    raise ValueError(f"there is no compression codec {codec}")


def decompress(codec: int, data: Buffer, limit: int) -> Buffer:
    """The data decompressed; MalformedMessage if it is corrupt or longer than `limit`."""
    match codec:
        case Compression.NONE:
            if len(data) > limit:
                raise _too_long(limit)
            return data
        case Compression.GZIP:
            return _decompress_gzip(data, limit)
        case Compression.SNAPPY:
            return _decompress_snappy(data, limit)
        case Compression.LZ4:
            return _decompress_lz4(data, limit)
        case Compression.ZSTD:
            return _decompress_zstd(data, limit)
    raise MalformedMessage(f"there is no compression codec {codec}")


def _too_long(limit: int) -> MalformedMessage:
    return MalformedMessage(f"decompressed data exceeds {limit} bytes")


def _decompress_gzip(data: Buffer, limit: int) -> bytes:
    parts = []
    room = limit
    rest: Buffer = data
    while rest:
        decompressor = zlib.decompressobj(wbits=31)
        try:
            # One more byte than allowed, to tell "just fits" from "there is more".
            part = decompressor.decompress(rest, room + 1)
        except zlib.error as error:
            raise MalformedMessage(f"gzip: {error}") from error
        room -= len(part)
        if room < 0:
            raise _too_long(limit)
        if not decompressor.eof:
            raise MalformedMessage("gzip: the data is cut short")
        parts.append(part)
        rest = decompressor.unused_data
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _decompress_lz4(data: Buffer, limit: int) -> bytes:
    import lz4.frame

    parts = []
    room = limit
    rest: Buffer | None = data
    while rest:
        decompressor = lz4.frame.LZ4FrameDecompressor()
        try:
            part = decompressor.decompress(rest, max_length=room + 1)
        except (RuntimeError, ValueError) as error:
            raise MalformedMessage(f"lz4: {error}") from error
        room -= len(part)
        if room < 0:
            raise _too_long(limit)
        if not decompressor.eof:
            raise MalformedMessage("lz4: the data is cut short")
        parts.append(part)
        rest = decompressor.unused_data
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _decompress_zstd(data: Buffer, limit: int) -> Buffer:
    """The format need not say how long the data is, so the room for it grows until it fits."""
    import cramjam

    room = min(limit, max(_ZSTD_FIRST_ROOM, 4 * len(data)))
    while True:
        output = bytearray(room)
        try:
            size = cramjam.zstd.decompress_into(data, output)
        except cramjam.DecompressionError as error:
            if _ZSTD_NO_ROOM not in str(error):
                raise MalformedMessage(f"zstd: {error}") from error
            if room >= limit:
                raise _too_long(limit) from error
            room = min(limit, 4 * room)
            continue
        del output[size:]
        return output


def _compress_snappy(data: Buffer) -> bytes:
    import cramjam

    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_SIZE):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_SIZE]))
        parts.append(_BLOCK_LENGTH.pack(len(block)))
        parts.append(block)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, limit: int) -> bytes:
    view = memoryview(data)
    if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _decompress_snappy_block(view, limit)
    parts = []
    room = limit
    position = len(_XERIAL_HEADER)
    while position < len(view):
        if len(view) - position < _BLOCK_LENGTH.size:
            raise MalformedMessage("snappy: a block is cut short")
        (size,) = _BLOCK_LENGTH.unpack_from(view, position)
        position += _BLOCK_LENGTH.size
        if not 0 <= size <= len(view) - position:
            raise MalformedMessage("snappy: a block is cut short")
        part = _decompress_snappy_block(view[position : position + size], room)
        room -= len(part)
        parts.append(part)
        position += size
    return b"".join(parts)


def _decompress_snappy_block(block: memoryview, limit: int) -> bytes:
    import cramjam

    try:
        if cramjam.snappy.decompress_raw_len(block) > limit:
            raise _too_long(limit)
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise MalformedMessage(f"snappy: {error}") from error
