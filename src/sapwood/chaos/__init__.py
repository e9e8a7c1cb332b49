"""Clients that misbehave, and a verdict on what came of it: `sapwood chaos clients`.

In: how many topics, publishers and subscribers, for how long, and a seed. Each client is a process
of its own that crashes, stalls, drops acknowledgements, subscribes and unsubscribes at random, and
notes each step in a file before it takes the next. Out: a verdict from those notes and the topics'
own logs: what was lost, doubled or out of order.
Always: nobody's word counts but the data's. A message that a crash took in the one window that get
leaves open is counted apart, at most one per crash; and a client with a planted bug is found out.
"""
