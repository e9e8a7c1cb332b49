"""Tier 1, the tree: the shipped rules of edges, core nodes and the supervisor, up to 31 edges.

A `Forest` has a clock, a bag of messages and nodes, each of which carries out what its rules of
`sapwood.tree` order; every node's own clock runs at its own pace. Objects are passed as they are.
In comes a seed; a `Run` draws from it the nodes, the weather and which faults there are, lets them
rage, ends them and waits for everybody to be attached. `Invariants` look on after every event: no
loop at any instant, one father each, nobody is taken in by an orphan; and in the end all hang from
the core, know their ancestors, and the supervisor says so.
"""
