"""Compression codecs: what others write, what is corrupt, and what would not fit into memory."""

import gzip
import subprocess
import sys

import cramjam
import lz4.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.codec import snappy_decode, snappy_encode

from sapwood.wire.compression import Compression, compress, decompress
from sapwood.wire.errors import MalformedMessage

REAL_CODECS = [codec for codec in Compression if codec]
DATA = b"".join(b"line %d of some text\n" % number for number in range(10_000))


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=2000), st.integers(0, 100), st.sampled_from(list(Compression)))
def test_data_survives_every_codec(block: bytes, repeats: int, codec: Compression) -> None:
    data = block * repeats
    assert decompress(codec, compress(codec, data), len(data)) == data


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_every_kind_of_buffer_is_taken(codec: Compression, kind: type) -> None:
    assert decompress(codec, kind(compress(codec, kind(DATA))), 10**6) == DATA


@pytest.mark.parametrize("codec", list(Compression))
def test_data_that_just_fits_is_let_through_and_one_byte_more_is_not(codec: Compression) -> None:
    compressed = compress(codec, DATA)
    assert decompress(codec, compressed, len(DATA)) == DATA
    with pytest.raises(MalformedMessage, match="exceeds"):
        decompress(codec, compressed, len(DATA) - 1)


def test_snappy_is_read_raw_and_in_javas_framing_and_written_in_the_latter() -> None:
    assert decompress(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(DATA)), 10**6) == DATA
    assert decompress(Compression.SNAPPY, snappy_encode(DATA), 10**6) == DATA
    assert snappy_decode(bytes(compress(Compression.SNAPPY, DATA))) == DATA


def test_data_in_several_frames_is_read_to_the_end() -> None:
    halves = DATA[:5000], DATA[5000:]
    zstd = b"".join(bytes(cramjam.zstd.compress(half)) for half in halves)
    assert decompress(Compression.GZIP, b"".join(map(gzip.compress, halves)), 10**6) == DATA
    assert decompress(Compression.LZ4, b"".join(map(lz4.frame.compress, halves)), 10**6) == DATA
    assert decompress(Compression.ZSTD, zstd, 10**6) == DATA


def test_zstd_without_a_content_size_is_read() -> None:
    compressor = cramjam.zstd.Compressor()
    for _ in range(20):
        compressor.compress(DATA)
    assert decompress(Compression.ZSTD, bytes(compressor.finish()), 10**8) == DATA * 20


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_data_that_is_cut_short_or_no_such_thing_is_malformed(codec: Compression) -> None:
    compressed = bytes(compress(codec, DATA))
    for broken in (compressed[:-1], compressed[:30], b"no compressed data at all", b"\xff" * 40):
        with pytest.raises(MalformedMessage):
            decompress(codec, broken, 10**6)


def test_an_unknown_codec_is_malformed_on_the_way_in_and_an_error_on_the_way_out() -> None:
    with pytest.raises(MalformedMessage, match="codec 7"):
        decompress(7, b"", 10)
    with pytest.raises(ValueError, match="codec 7"):
        compress(7, b"")


BOMBS = """
import resource, zlib, cramjam, lz4.frame
from sapwood.wire.compression import Compression, decompress
from sapwood.wire.errors import MalformedMessage

zeros = bytes(2**20)
gzip_stream = zlib.compressobj(wbits=31)
lz4_stream = lz4.frame.LZ4FrameCompressor()
zstd_stream = cramjam.zstd.Compressor()
gzip_bomb, lz4_bomb = b"", lz4_stream.begin()
for _ in range(128):
    gzip_bomb += gzip_stream.compress(zeros)
    lz4_bomb += lz4_stream.compress(zeros)
    zstd_stream.compress(zeros)
gzip_bomb += gzip_stream.flush()
lz4_bomb += lz4_stream.flush()
bombs = {
    Compression.GZIP: gzip_bomb,
    Compression.LZ4: lz4_bomb,
    Compression.ZSTD: bytes(zstd_stream.finish()),
    Compression.SNAPPY: bytes([255, 255, 255, 255, 7]) + bytes(100),
}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for codec, bomb in bombs.items():
    try:
        decompress(codec, bomb, 2**20)
    except MalformedMessage as error:
        assert "exceeds" in str(error), error
    else:
        raise SystemExit(f"{codec!r} exploded")
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
assert grown < 40 * 1024, f"{grown} KiB more"
"""


def test_a_bomb_is_refused_without_the_memory_for_what_is_inside() -> None:
    subprocess.run([sys.executable, "-c", BOMBS], check=True, timeout=120)
