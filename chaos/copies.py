"""Every node's own copy of a partition, read at that node alone, from beginning to end.

To be read is also what makes a node look at bytes that it hasn't looked at for long: if they are
damaged, it has to notice, refuse them, and fill its copy again from the others.
"""

import time

from chaos.direct import Direct, NoAnswer, Refused
from chaos.history import Copy, Offline, Recorder, from_the_wire, runs
from chaos.readers import Partition
from chaos.target import Target

EVERY_S = 0.2


class CopyIncomplete(Exception):
    """A node didn't give its copy to the end."""


def record_copies(
    recorder: Recorder, target: Target, ends: dict[Partition, int], patience_s: float
) -> None:
    """Up to the ends that others have found."""
    topics = list({topic for topic, _ in ends})
    deadline = time.monotonic() + patience_s
    while not ends.keys() <= (known := target.partitions(topics)).keys():
        if time.monotonic() > deadline:
            raise CopyIncomplete(f"nobody tells where copies are of {ends.keys() - known.keys()}")
        time.sleep(EVERY_S)
    for (topic, partition), end in ends.items():
        for node in known[topic, partition].replicas:
            with Direct(target.address(node), timeout_s=5.0) as direct:
                try:
                    records = _read(direct, topic, partition, end, patience_s)
                except CopyIncomplete as error:
                    recorder.add(
                        Offline(node=node, topic=topic, partition=partition, reason=str(error))
                    )
                    continue
            # An empty replica is one, too.
            for offset, values in list(runs(records)) or [(0, [])]:
                recorder.add(
                    Copy(node=node, topic=topic, partition=partition, offset=offset, values=values)
                )


def _read(
    direct: Direct, topic: str, partition: int, end: int, patience_s: float
) -> list[tuple[int, str]]:
    records: list[tuple[int, str]] = []
    offset = 0
    deadline = time.monotonic() + patience_s
    reason = ""
    while offset < end:
        try:
            found = direct.fetch(topic, partition, offset)
        except (Refused, NoAnswer) as error:
            found, reason = None, str(error)
        if found is None or found.next_offset == offset:
            if time.monotonic() > deadline:
                raise CopyIncomplete(f"its copy ends at {offset} instead of {end}: {reason}")
            time.sleep(EVERY_S)
            continue
        records += [(place, from_the_wire(value)) for place, value in found.records]
        offset = found.next_offset
        deadline = time.monotonic() + patience_s
    return records
