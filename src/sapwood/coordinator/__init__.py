"""Who owns what in a group, and how a transaction ends: machines that follow from a log.

A *shard* is one partition of an internal, compacted topic, and the machine that its records make
when they are replayed; it lives where that partition is led. In come requests, markers of
transactions and the time; out go effects: records to append, answers, and whatever else a machine
asks for. Always: a machine changes its state and hands out the records of that change in one
step, and replaying them gives the same state; nothing takes effect outside before they are
committed, so nobody ever sees what could still be lost.
"""
