"""A relay: to Kafka's clients a whole cluster, to the core one reader and one who asks for many.

In come clients' requests; up to the parent go, over one link, what is wanted of partitions that
somebody below reads, and everything else as it came, with who asked it. Out go answers in which
no node is named but this edge and its siblings. An edge holds no replica, no group and no
transaction: whoever loses it goes on at a sibling, from where it was; with an outbox it holds what
it has accepted for a cluster that is away. Always: what is cached was committed, and lies as the
leader has it; an offset is out of range only if a leader says so; what a client has sent leaves in
that order, and is sent twice only if that does no harm; what was accepted arrives once.
"""

from sapwood.edge.edge import Edge
from sapwood.edge.hanging import Identity
from sapwood.edge.outbox import Outbox

__all__ = ["Edge", "Identity", "Outbox"]
