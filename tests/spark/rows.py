"""Rows that are easy to account for."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa

KEYS = 500
# A whole minute, and not so long ago that retention would take what was written then.
FIRST = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(days=2)
STORED_PARTITIONS = 2
PER_MINUTE = 120


def numbered(start: int, stop: int) -> pa.Table:
    """Keys and values are the numbers themselves."""
    values = [b"%d" % number for number in range(start, stop)]
    return pa.table({"key": values, "value": values})


def numbers_of(table: pa.Table) -> list[int]:
    """In ascending order, each as often as it is there."""
    return sorted(int(value) for value in table["value"].to_pylist())


def rounds(start: int, stop: int) -> pa.Table:
    """Each key once per round, with the round's number as its value."""
    numbers = [(key, value) for value in range(start, stop) for key in range(KEYS)]
    return pa.table(
        {
            "key": [b"%d" % key for key, _ in numbers],
            "value": [b"%d" % value for _, value in numbers],
        }
    )


def aged(start_minute: float, stop_minute: float) -> pa.Table:
    """Records that are evenly spread over the minutes from `FIRST` on."""
    numbers = range(int(start_minute * PER_MINUTE), int(stop_minute * PER_MINUTE))
    step = timedelta(minutes=1) / PER_MINUTE
    return pa.table(
        {
            "key": [b"%d" % (number % 7) for number in numbers],
            "value": [b"12345"] * len(numbers),
            "timestamp": pa.array(
                [FIRST + number * step for number in numbers], pa.timestamp("ms", "UTC")
            ),
        }
    )


def stored(count: int) -> pa.Table:
    """As an archive may look after its upkeep: no file (`part`) has the order of the records."""
    numbers = list(reversed(range(count)))
    return pa.table(
        {
            "key": [b"%d" % (number % 7) for number in numbers],
            "value": [b"%d" % number for number in numbers],
            "topic": ["orders"] * count,
            "partition": pa.array([it % STORED_PARTITIONS for it in numbers], pa.int32()),
            "offset": pa.array([it // STORED_PARTITIONS for it in numbers], pa.int64()),
            "timestamp": pa.array(
                [FIRST + timedelta(seconds=number) for number in numbers],
                pa.timestamp("us", "UTC"),
            ),
            "part": [number // 50 % 4 for number in numbers],
        }
    )
