"""What the cluster has agreed on: nodes, topics, configs, ids, clients, the tree.

In come commands; out go records, which the caller appends to the metadata log. Records that
the log has committed are applied to an `Image`, and every answer about the cluster is read
from an image. Applying the same records in the same order always gives the same image, on
every node; an image can be turned into records again. Placement says which nodes should hold a
partition, and `plan` which partition moves next when the cluster has changed. No step costs a
topic a replica. Nothing in this room knows of time, chance, files or sockets.
"""
