"""Process chaos: real nodes and real clients under real faults, judged by what was promised.

In: a seed, which decides the workload's shape (`shape`) and the faults (`nemesis`), and the size
of the cluster (`target`). Out: a history of every operation of every client and of every fault
(`history`), what is wrong with it (`checkers`), and a report (`report`). A run has two phases:
faults under load, then healing and the final check (`run`); `stress` is load without faults.
Always: the verdict follows from the recorded history alone, so anybody can judge it again; a
failing run prints its seed and keeps data and logs; processes and mounts are gone at the end.
"""
