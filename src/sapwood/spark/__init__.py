"""Spark: a topic as a DataFrame, without a jar, and Arrow all the way.

In: chunks of record batches, as the protocol client fetched them. Out: Arrow columns under the
names of Spark's own Kafka source, filled by compiled code that makes no Python object per record;
and the other way round. `source` and `sink` are what the driver does, `reading` and `writing` what
a task does with its range or its rows.
Always: what a reader is told to read it reads wholly, or it fails and says what is missing; of a
batch all rows become visible at once, and once; no byte is touched beyond the end of its buffer.
"""
