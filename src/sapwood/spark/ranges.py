"""A range of offsets, and what is said if some of it is gone."""

from __future__ import annotations

import logging
from typing import NamedTuple


class DataLost(Exception):
    """Records that were asked for aren't in the log any more; says which."""


class Range(NamedTuple):
    topic: str
    partition: int
    start: int
    stop: int


def report_loss(topic: str, partition: int, first: int, end: int | None, may_lose: bool) -> None:
    """Raise DataLost, or only tell the log; `end` is None if nobody knows how much there was."""
    what = (
        f"offsets {first} to {end - 1} are" if end is not None else f"all from offset {first} on is"
    )
    message = (
        f"topic {topic}, partition {partition}: {what} no longer there: retention has removed it, "
        "or the topic was deleted or made anew"
    )
    if not may_lose:
        raise DataLost(
            f"{message}; to go on without, set failOnDataLoss to false, or give a pipeline "
            "--allow-data-loss"
        )
    logging.getLogger("sapwood.spark").warning(message)
