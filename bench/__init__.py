"""Sapwood against its peers: the same work, on the same machine, in the same run.

In: the names of the peers and the size of the work. Out: a table of ratios, a plot and the raw
numbers. The harness (`python -m bench`) starts one broker at a time, fresh, and hands every
measurement to a process of its own (`bench.load`), so that client and broker have a core each.
Rounds are interleaved: every peer is measured once before any is measured twice, so that a slow
minute of the machine hits all of them. Whatever was started is ended, after Ctrl-C too.
"""
