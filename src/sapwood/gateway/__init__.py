"""REST for people and programs without a Kafka client, in a process of its own beside each node.

In: HTTP requests. Out: JSON, or problem details (RFC 9457). `routes` is one table of paths and
methods; validation, answers and `/openapi.json` follow from its handlers' signatures. The nodes are
reached through the protocol client only, as any client reaches them, and without the secret.
Always: an answer within the request's time; what waits for a quorum that isn't there is a 503 with
Retry-After; bodies, headers, connections and what slow readers leave unread have bounds; nothing
is kept here that a crash could lose: registrations and positions are the cluster's.
"""
