"""Suites of others against a running node: they know Kafka, not Sapwood.

In: a suite's source, fetched once into the user's cache and never committed, and a table of the
tests that aren't expected to pass, each with what it needs. Out: every test's result beside what
was expected. Whatever differs is an error in either direction: a test that starts to pass has to
leave the table.
"""
