"""The simulator: shipped code on virtual time, an in-memory network and forgetful disks.

In comes a seed; out comes a verdict, a trace and its hash. Everything that chance decides is
drawn from the seed, one random source per concern, so a failing seed fails again.
A `World` holds machines (network host, wall clock, disk); processes run on machines, may be
paused and may die between any two callbacks or at any change of the disk. Invariants look on
after every event. Nothing here waits for real time, opens a socket or starts a thread, and
nothing in `src` knows of it: what the shipped code must not reach is replaced in `seams`.
"""
