"""Spark finds a data source in every package of such a name: `format("sapwood")` simply works."""

from sapwood.spark.source import SapwoodSource as DefaultSource

__all__ = ["DefaultSource"]
