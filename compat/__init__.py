"""Suites of others against a running node: they know Kafka, not Sapwood.

In: a suite's source, fetched once into the user's cache and never committed, or a program of our
own that uses Kafka's Java clients and has been run against Kafka, and a table of what isn't
expected to pass, each with its reason. Out: every result beside what was expected. Whatever
differs is an error in either direction: what starts to pass has to leave the table.
"""
