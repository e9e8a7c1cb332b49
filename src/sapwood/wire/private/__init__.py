"""Sapwood's own messages: dataclasses in the style of kio's, coded by the same compiler.

They serve as schemas only: what is encoded and decoded are Structs, as with Kafka's messages. All
are flexible, so that a field that only a newer node knows can be added as a tagged one, and carry
a version. Some are for everybody (`server.gate`); the others are for whoever has proved by
AUTHENTICATE that it knows the cluster's secret. A group is (topic_id, partition); the metadata log
is one, too.
"""

from typing import Any

from sapwood.wire.apis import Api
from sapwood.wire.private import (
    clients,
    forwarding,
    membership,
    outbox,
    relaying,
    replication,
    status,
    subscriptions,
    times,
    transactions,
    tree,
)

MESSAGES: dict[tuple[int, int], tuple[Any, Any]] = {
    (Api.NODE_STATUS, 0): (status.NodeStatusRequest, status.NodeStatusResponse),
    (Api.AUTHENTICATE, 0): (membership.AuthenticateRequest, membership.AuthenticateResponse),
    (Api.REPLICA_FETCH, 0): (replication.ReplicaFetchRequest, replication.ReplicaFetchResponse),
    (Api.REPLICA_VOTE, 0): (replication.ReplicaVoteRequest, replication.ReplicaVoteResponse),
    (Api.ANNOUNCE, 0): (replication.AnnounceRequest, replication.AnnounceResponse),
    (Api.TRANSFER, 0): (replication.TransferRequest, replication.TransferResponse),
    (Api.FORWARD, 0): (forwarding.ForwardRequest, forwarding.ForwardResponse),
    (Api.JOIN, 0): (membership.JoinRequest, membership.JoinResponse),
    (Api.CHANGE_NODE, 0): (membership.ChangeNodeRequest, membership.ChangeNodeResponse),
    (Api.RECOVER_PARTITION, 0): (
        membership.RecoverPartitionRequest,
        membership.RecoverPartitionResponse,
    ),
    (Api.CHANGE_CLIENT, 0): (clients.ChangeClientRequest, clients.ChangeClientResponse),
    (Api.LIST_CLIENTS, 0): (clients.ListClientsRequest, clients.ListClientsResponse),
    (Api.RESERVE_PRODUCER_IDS, 0): (
        clients.ReserveProducerIdsRequest,
        clients.ReserveProducerIdsResponse,
    ),
    (Api.END_TXN_GROUP, 0): (transactions.EndTxnGroupRequest, transactions.EndTxnGroupResponse),
    (Api.HELD_OFFSET, 0): (subscriptions.HeldOffsetRequest, subscriptions.HeldOffsetResponse),
    (Api.APPEND_TIMES, 0): (times.AppendTimesRequest, times.AppendTimesResponse),
    (Api.TOPIC_TIMES, 0): (times.TopicTimesRequest, times.TopicTimesResponse),
    (Api.RELAY, 0): (relaying.RelayRequest, relaying.RelayResponse),
    (Api.OUTBOX, 0): (outbox.OutboxRequest, outbox.OutboxResponse),
    (Api.DESCRIBE_REPLICAS, 0): (status.DescribeReplicasRequest, status.DescribeReplicasResponse),
    (Api.ATTACH, 0): (tree.AttachRequest, tree.AttachResponse),
    (Api.REGISTER_EDGE, 0): (tree.RegisterEdgeRequest, tree.RegisterEdgeResponse),
    (Api.CONFIRM_EDGE, 0): (tree.ConfirmEdgeRequest, tree.ConfirmEdgeResponse),
    (Api.REPORT_DOWN, 0): (tree.ReportDownRequest, tree.ReportDownResponse),
    (Api.REPORT_TREE, 0): (tree.ReportTreeRequest, tree.ReportTreeResponse),
    (Api.DESCRIBE_TREE, 0): (tree.DescribeTreeRequest, tree.DescribeTreeResponse),
}
