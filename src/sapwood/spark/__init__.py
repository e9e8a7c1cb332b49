"""Spark: a topic as a DataFrame, without a jar, and Arrow all the way.

In: chunks of record batches, as the protocol client fetched them. Out: Arrow columns under the
names of Spark's own Kafka source, filled by compiled code that makes no Python object per record;
and the other way round. `source` plans on the driver, `reading` is what a task does with its range.
Always: what a reader is told to read it reads wholly, or it fails and says what is missing; bytes
that can't be understood raise, and none is touched beyond the end of its buffer.
"""
