"""The words that everybody speaks: Kafka's frames, messages and record batches.

Bytes come in and plain messages go out, and the other way round; nothing here does I/O, keeps
state between calls (except the reassembly of frames) or looks at the clock. The codec is compiled
from kio's schemas, one message at a time, when it is first used.

What always holds: bytes from the wire that can't be understood raise MalformedMessage and nothing
else; no number from the wire sizes an allocation before it was held against the bytes that are
there or against a limit; tagged fields that are unknown are skipped; records are never copied.
"""
