"""Every node's own copy of a partition, read from its files past all that might smooth it over."""

import re
from collections.abc import Iterator
from pathlib import Path

from chaos.history import Copy, Recorder, from_the_wire, runs
from chaos.readers import Partition
from chaos.target import Target
from sapwood.log.dump import EntryRow, dump

LOG = re.compile(r".+-\d+\.[0-9a-f]{32}")


def record_copies(recorder: Recorder, target: Target, partitions: list[Partition]) -> None:
    """Of each node that has one; a node without files of a partition holds no replica of it."""
    for node in target.nodes:
        for topic, partition in partitions:
            for directory in target.files(node).glob(f"logs/{topic}-{partition}.*"):
                if not LOG.fullmatch(directory.name):  # what was damaged is kept beside it
                    continue
                copy = Copy(node=node, topic=topic, partition=partition, offset=0, values=[])
                recorder.add(copy)  # an empty replica is one, too
                for offset, values in runs(_records(directory)):
                    recorder.add(
                        Copy(
                            node=node,
                            topic=topic,
                            partition=partition,
                            offset=offset,
                            values=values,
                        )
                    )


def _records(directory: Path) -> Iterator[tuple[int, str]]:
    """What is damaged is left out: that makes it differ from the others."""
    for row in dump(str(directory), records=True):
        if isinstance(row, EntryRow) and not row.control:
            for record in row.records:
                yield record.offset, from_the_wire(record.value)
