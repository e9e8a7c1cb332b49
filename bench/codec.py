"""How many records a second one core turns into Arrow columns and back: python -m bench.codec"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from sapwood.client.fetcher import Chunk
from sapwood.spark.decoding import record_batches
from sapwood.spark.encoding import Rows
from sapwood.wire.compression import Compression
from sapwood.wire.records import seal_batch

BATCH_BYTES = 256 * 1024
CHUNK_BYTES = 8 * 1024 * 1024
NOW_MS = 1_700_000_000_000


def table(count: int, value_bytes: int) -> pa.RecordBatch:
    """Values of random words: they compress about as text does."""
    words = np.random.default_rng(0).integers(ord("a"), ord("h"), (count, value_bytes), np.uint8)
    keys = pa.array([b"key-%08d" % number for number in range(count)])
    values = pa.array([row.tobytes() for row in words])
    return pa.RecordBatch.from_arrays([keys, values], ["key", "value"])


def encode(batch: pa.RecordBatch, codec: Compression) -> list[bytearray]:
    rows = Rows(batch, NOW_MS)
    packed = rows.pack(np.arange(batch.num_rows), BATCH_BYTES, BATCH_BYTES)
    return [seal_batch(*each, compression=codec) for each in packed]


def decode(chunks: list[Chunk]) -> int:
    return sum(batch.num_rows for chunk in chunks for batch in record_batches(chunk))


def chunks_of(batches: list[bytearray]) -> list[Chunk]:
    chunks, data = [], bytearray()
    for batch in batches:
        data += batch
        if len(data) >= CHUNK_BYTES or batch is batches[-1]:
            chunks.append(Chunk("topic", 0, 0, 0, None, 0, memoryview(bytes(data))))
            data = bytearray()
    return chunks


def rate(work: Callable[[], object], count: int, rounds: int) -> float:
    """Millions of records per second of this process's CPU time, the median of the rounds."""
    work()
    rates = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        rates.append(count / (time.process_time() - start) / 1e6)
    return statistics.median(rates)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.codec", description=__doc__)
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--codecs", default="none,lz4,zstd", help="gzip and snappy, too")
    options = parser.parse_args()
    batch = table(options.records, options.value_bytes)
    print(f"million records/s of CPU time, {options.value_bytes}-byte values, 12-byte keys")
    print(f"{'codec':8}{'encode':>10}{'decode':>10}")
    for codec in [Compression[name.upper()] for name in options.codecs.split(",")]:
        encoded = encode(batch, codec)
        chunks = chunks_of(encoded)

        def write(codec: Compression = codec) -> object:
            return encode(batch, codec)

        def read(chunks: list[Chunk] = chunks) -> object:
            return decode(chunks)

        rates = [rate(work, options.records, options.rounds) for work in (write, read)]
        print(f"{codec.name.lower():8}{rates[0]:10.1f}{rates[1]:10.1f}", flush=True)


if __name__ == "__main__":
    main()
