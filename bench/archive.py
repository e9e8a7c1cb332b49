"""Archive a large topic and show whose memory grows meanwhile: python -m bench.archive --gib 10"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.dataset as ds

import sapwood
from sapwood.bulk import BulkClient
from sapwood.spark.tables import FORMATS, open_table

MIB = 2**20
TOPIC = "big"
ROWS_AT_ONCE = 65_536
EVERY_S = 5.0


class Memory(NamedTuple):
    """Bytes that are resident."""

    jvm: int
    driver: int
    workers: int
    worker_count: int


def fill(bootstrap: str, size_bytes: int, value_bytes: int) -> int:
    """A topic of so many bytes of JSON; the number of messages."""
    chance = np.random.default_rng(1)
    texts = chance.integers(97, 123, (ROWS_AT_ONCE, value_bytes - 24), np.uint8)
    values = [
        b'{"id": %d, "text": "%s"}' % (number, text.tobytes()) for number, text in enumerate(texts)
    ]
    table = pa.table({"value": pa.array(values, pa.binary())})
    done = count = 0
    with BulkClient(bootstrap) as client:
        while done < size_bytes:
            count += client.produce_arrow(TOPIC, table)
            done += table.nbytes
    return count


def memory_of(process: psutil.Process) -> Memory:
    jvm = driver = workers = count = 0
    for one in process.children(recursive=True):
        try:
            size, command = one.memory_info().rss, " ".join(one.cmdline())
        except psutil.Error:
            continue
        if "java" in command.partition(" ")[0]:
            jvm += size
        elif "pyspark.daemon" in command or "pyspark/" in command:
            workers += size
            count += 1
        else:
            driver += size
    return Memory(jvm, driver, workers, count)


def samples(command: list[str]) -> Iterator[tuple[float, Memory]]:
    began = time.monotonic()
    running = subprocess.Popen(command)
    try:
        process = psutil.Process(running.pid)
        while running.poll() is None:
            yield time.monotonic() - began, memory_of(process)
            try:
                running.wait(EVERY_S)
            except subprocess.TimeoutExpired:
                continue
    finally:
        if running.poll() is None:
            running.terminate()
            running.wait(60)
    if running.returncode:
        raise SystemExit(f"the pipeline ended with status {running.returncode}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.archive", description=__doc__)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--value-bytes", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--format", choices=FORMATS, default="parquet")
    parser.add_argument("--values", choices=("raw", "json"), default="raw")
    parser.add_argument("--memory", default="2g", help="of Spark's heap")
    parser.add_argument("--dir", type=Path, help="where all of it lies meanwhile")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="sapwood-archive-", dir=options.dir))
    try:
        with sapwood.Cluster(topics={TOPIC: options.partitions}, data_dir=folder / "c") as cluster:
            count = fill(cluster.bootstrap, int(options.gib * 2**30), options.value_bytes)
            print(f"{count:,} messages, {options.gib:g} GiB", flush=True)
            archive(options, cluster.bootstrap, folder, count)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def archive(options: argparse.Namespace, bootstrap: str, folder: Path, count: int) -> None:
    tables = folder / "tables"
    command = [sys.executable, "-m", "sapwood", "pipeline", "run", "archive", "--quiet"]
    command += ["--bootstrap", bootstrap, "--dir", str(folder / "runs"), "--tables", str(tables)]
    command += ["--format", options.format, "--values", options.values, "--topics", TOPIC]
    command += ["--memory", options.memory]
    print("     s   JVM MiB   driver MiB   workers MiB", flush=True)
    seen = []
    for at_s, memory in samples(command):
        seen.append(memory)
        shown = f"{memory.workers / MIB:8.0f} ({memory.worker_count})"
        print(
            f"{at_s:6.0f}{memory.jvm / MIB:10.0f}{memory.driver / MIB:13.0f}   {shown}", flush=True
        )
    took_s = at_s
    files = open_table(tables, TOPIC, options.format).files()
    found = ds.dataset([file.path for file in files]).count_rows()
    size_bytes = sum(os.stat(file.path).st_size for file in files)
    print(
        f"{found:,} rows in {len(files)} files, {size_bytes / 2**30:.2f} GiB, in {took_s:.0f} s: "
        f"{found / took_s:,.0f} rows/s, {options.gib * 1024 / took_s:.0f} MiB/s"
    )
    # The first quarter is for the start and the growth of heaps to their working size.
    second, last = (
        max((sum(each[:3]) for each in part), default=0)
        for part in (seen[len(seen) // 4 : len(seen) // 2], seen[len(seen) // 2 :])
    )
    print(f"most of all together: {second / MIB:.0f} MiB in the second quarter, "
          f"{last / MIB:.0f} MiB in the second half")  # fmt: skip
    if found != count:
        raise SystemExit(f"{count:,} messages became {found:,} rows")


if __name__ == "__main__":
    main()
