"""Tier 1: the shipped rules of consensus alone, on logs in memory, thousands of seeds an hour.

A `Cluster` has a clock, a bag of messages and `Member`s; a member carries out what its
`sapwood.raft.Group` orders, on a log that a power cut shortens to what was synced. Nothing is
encoded and nothing is read from a file: objects are passed as they are.
In comes a seed; a `Run` draws from it the members, the weather and which faults there are, lets
them rage, heals everything and waits for all to settle. `Invariants` look on after every event,
with knowledge that no member has: every log, every vote and what was ever committed.
"""
