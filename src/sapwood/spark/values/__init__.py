"""Records' values as columns: JSON, Avro and Protobuf, a batch of them at a time.

In: the bytes of some values, and the columns that their table has. Out: a row for each value that
could be understood, in the same order, and for each of the others the reason. New columns are found
by looking (JSON) or in the schema (Avro, Protobuf), which comes from a registry if values have its
number in front. Always: a bad value harms no other, wherever it lies and whatever it contains;
a type that can't be widened makes a value bad, and leaves the column as it is; a registry that
doesn't answer is nobody's fault, and raises.
"""

from sapwood.spark.values.decoding import Decoded, Decoder, ValueFormat, WrongSchema, make_decoder
from sapwood.spark.values.registry import RegistryFailed

__all__ = [
    "Decoded",
    "Decoder",
    "RegistryFailed",
    "ValueFormat",
    "WrongSchema",
    "make_decoder",
]
