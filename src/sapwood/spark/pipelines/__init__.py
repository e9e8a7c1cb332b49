"""Pipelines: what Spark does with topics, each in a file of its own.

In: a Spark session and a `Run`, which says where the cluster is, what the user asked for and where
the run keeps its state. Out: streaming queries that somebody else waits for, or an `Outcome`. Each
file has a `PIPELINE` and the functions on DataFrames that it is made of, for use elsewhere.
Always: a run that was killed is run again under its name and goes on where it was; and to import
a pipeline doesn't import Spark, so that the command line can ask it for its options at once.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from sapwood.spark.pipelines.words import Pipeline

# What `sapwood pipeline ls` says, without looking into the files.
PIPELINES: Mapping[str, str] = {
    "archive": "Topics as tables by date: Parquet, Delta or Iceberg, each record once.",
    "audit": "Prove from the data that nothing was lost, doubled or reordered.",
    "latest": "The newest value of each key as a table.",
    "replay": "The rows of a table as messages of a topic.",
    "rollup": "Records, bytes, keys and latencies of each topic in windows of time.",
    "timeline": "The records of topics in one order of time, as a table and a topic.",
}


class NoSuchPipeline(LookupError):
    """There is no ready-made pipeline of this name."""


def load(name: str) -> Pipeline:
    if name not in PIPELINES:
        raise NoSuchPipeline(f"there is no pipeline {name!r}: there are {', '.join(PIPELINES)}")
    found = importlib.import_module(f"sapwood.spark.pipelines.{name}").PIPELINE
    if not isinstance(found, Pipeline):
        raise TypeError(f"sapwood.spark.pipelines.{name}.PIPELINE is no Pipeline")
    return found
