"""The next step from the voters there are to the voters that are wanted."""

from __future__ import annotations

from collections.abc import Sequence

from sapwood.raft.quorum import majority
from sapwood.raft.words import Voter, Voters


def next_voters(voters: Voters, ready: Sequence[Voter], target: Sequence[int]) -> Voters | None:
    """One voter more or less, or None if nothing can be done now.

    `ready` are the replicas that hold what is committed, the leader first, who always stays. First
    goes a voter whose node has come back as another one: it is dead for good. Then all that are
    wanted come, and at last goes who isn't wanted, as long as a majority of the rest is ready.
    """
    leader = ready[0]
    nodes = {it.node for it in voters}
    joining = {it.node: it for it in ready if it not in voters}
    leaving = [it for it in voters if it.node in joining and it != leader]
    if not leaving:
        for node in target:
            if node not in nodes and node in joining:
                return (*voters, joining[node])
        if nodes.issuperset(target):
            leaving = [it for it in voters if it.node not in target and it != leader]
    for voter in leaving:
        rest = tuple(it for it in voters if it != voter)
        if len(set(rest).intersection(ready)) >= majority(len(rest)):
            return rest
    return None
