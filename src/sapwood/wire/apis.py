"""Which APIs exist, which of their versions can be coded, and which of those are flexible.

These are facts about the schemas, kept as a table so that a process that only answers
ApiVersions imports no schema at all; a test compares the table with the schemas.
"""

import enum


class Api(enum.IntEnum):
    """API keys; from 20000 on they are Sapwood's own, and most of those only for its nodes."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92
    NODE_STATUS = 20000
    AUTHENTICATE = 20001
    REPLICA_FETCH = 20002
    REPLICA_VOTE = 20003
    ANNOUNCE = 20004
    TRANSFER = 20005
    FORWARD = 20006
    JOIN = 20007
    CHANGE_NODE = 20008
    RECOVER_PARTITION = 20009
    DESCRIBE_REPLICAS = 20010
    CHANGE_CLIENT = 20011
    LIST_CLIENTS = 20012
    RESERVE_PRODUCER_IDS = 20013
    END_TXN_GROUP = 20014
    HELD_OFFSET = 20020
    APPEND_TIMES = 20021
    TOPIC_TIMES = 20022
    ATTACH = 20030
    REGISTER_EDGE = 20031
    CONFIRM_EDGE = 20032
    REPORT_DOWN = 20033
    REPORT_TREE = 20034
    DESCRIBE_TREE = 20035
    RELAY = 20040
    OUTBOX = 20041


# lowest version, highest version, first flexible version
_VERSIONS: dict[int, tuple[int, int, int]] = {
    Api.PRODUCE: (3, 13, 9),
    Api.FETCH: (4, 18, 12),
    Api.LIST_OFFSETS: (1, 11, 6),
    Api.METADATA: (0, 13, 9),
    Api.OFFSET_COMMIT: (2, 10, 8),
    Api.OFFSET_FETCH: (1, 10, 6),
    Api.FIND_COORDINATOR: (0, 6, 3),
    Api.JOIN_GROUP: (0, 9, 6),
    Api.HEARTBEAT: (0, 4, 4),
    Api.LEAVE_GROUP: (0, 5, 4),
    Api.SYNC_GROUP: (0, 5, 4),
    Api.DESCRIBE_GROUPS: (0, 6, 5),
    Api.LIST_GROUPS: (0, 5, 3),
    Api.SASL_HANDSHAKE: (0, 1, 2),
    Api.API_VERSIONS: (0, 4, 3),
    Api.CREATE_TOPICS: (2, 7, 5),
    Api.DELETE_TOPICS: (1, 6, 4),
    Api.DELETE_RECORDS: (0, 2, 2),
    Api.INIT_PRODUCER_ID: (0, 6, 2),
    Api.OFFSET_FOR_LEADER_EPOCH: (2, 4, 4),
    Api.ADD_PARTITIONS_TO_TXN: (0, 5, 3),
    Api.ADD_OFFSETS_TO_TXN: (0, 4, 3),
    Api.END_TXN: (0, 5, 3),
    Api.WRITE_TXN_MARKERS: (1, 2, 1),
    Api.TXN_OFFSET_COMMIT: (0, 5, 3),
    Api.DESCRIBE_ACLS: (1, 3, 2),
    Api.CREATE_ACLS: (1, 3, 2),
    Api.DELETE_ACLS: (1, 3, 2),
    Api.DESCRIBE_CONFIGS: (1, 4, 4),
    Api.ALTER_CONFIGS: (0, 2, 2),
    Api.ALTER_REPLICA_LOG_DIRS: (1, 2, 2),
    Api.DESCRIBE_LOG_DIRS: (1, 5, 2),
    Api.SASL_AUTHENTICATE: (0, 2, 2),
    Api.CREATE_PARTITIONS: (0, 3, 2),
    Api.CREATE_DELEGATION_TOKEN: (1, 3, 2),
    Api.RENEW_DELEGATION_TOKEN: (1, 2, 2),
    Api.EXPIRE_DELEGATION_TOKEN: (1, 2, 2),
    Api.DESCRIBE_DELEGATION_TOKEN: (1, 3, 2),
    Api.DELETE_GROUPS: (0, 2, 2),
    Api.ELECT_LEADERS: (0, 2, 2),
    Api.INCREMENTAL_ALTER_CONFIGS: (0, 1, 1),
    Api.ALTER_PARTITION_REASSIGNMENTS: (0, 1, 0),
    Api.LIST_PARTITION_REASSIGNMENTS: (0, 0, 0),
    Api.OFFSET_DELETE: (0, 0, 1),
    Api.DESCRIBE_CLIENT_QUOTAS: (0, 1, 1),
    Api.ALTER_CLIENT_QUOTAS: (0, 1, 1),
    Api.DESCRIBE_USER_SCRAM_CREDENTIALS: (0, 0, 0),
    Api.ALTER_USER_SCRAM_CREDENTIALS: (0, 0, 0),
    Api.VOTE: (0, 2, 0),
    Api.BEGIN_QUORUM_EPOCH: (0, 1, 1),
    Api.END_QUORUM_EPOCH: (0, 1, 1),
    Api.DESCRIBE_QUORUM: (0, 2, 0),
    Api.ALTER_PARTITION: (2, 3, 2),
    Api.UPDATE_FEATURES: (0, 2, 0),
    Api.ENVELOPE: (0, 0, 0),
    Api.FETCH_SNAPSHOT: (0, 1, 0),
    Api.DESCRIBE_CLUSTER: (0, 2, 0),
    Api.DESCRIBE_PRODUCERS: (0, 0, 0),
    Api.BROKER_REGISTRATION: (0, 4, 0),
    Api.BROKER_HEARTBEAT: (0, 2, 0),
    Api.UNREGISTER_BROKER: (0, 0, 0),
    Api.DESCRIBE_TRANSACTIONS: (0, 0, 0),
    Api.LIST_TRANSACTIONS: (0, 2, 0),
    Api.ALLOCATE_PRODUCER_IDS: (0, 0, 0),
    Api.CONSUMER_GROUP_HEARTBEAT: (0, 1, 0),
    Api.CONSUMER_GROUP_DESCRIBE: (0, 1, 0),
    Api.CONTROLLER_REGISTRATION: (0, 0, 0),
    Api.GET_TELEMETRY_SUBSCRIPTIONS: (0, 0, 0),
    Api.PUSH_TELEMETRY: (0, 0, 0),
    Api.ASSIGN_REPLICAS_TO_DIRS: (0, 0, 0),
    Api.LIST_CONFIG_RESOURCES: (0, 1, 0),
    Api.DESCRIBE_TOPIC_PARTITIONS: (0, 0, 0),
    Api.SHARE_GROUP_HEARTBEAT: (1, 1, 1),
    Api.SHARE_GROUP_DESCRIBE: (1, 1, 1),
    Api.SHARE_FETCH: (1, 2, 1),
    Api.SHARE_ACKNOWLEDGE: (1, 2, 1),
    Api.ADD_RAFT_VOTER: (0, 1, 0),
    Api.REMOVE_RAFT_VOTER: (0, 0, 0),
    Api.UPDATE_RAFT_VOTER: (0, 0, 0),
    Api.INITIALIZE_SHARE_GROUP_STATE: (0, 0, 0),
    Api.READ_SHARE_GROUP_STATE: (0, 0, 0),
    Api.WRITE_SHARE_GROUP_STATE: (0, 1, 0),
    Api.DELETE_SHARE_GROUP_STATE: (0, 0, 0),
    Api.READ_SHARE_GROUP_STATE_SUMMARY: (0, 1, 0),
    Api.STREAMS_GROUP_HEARTBEAT: (0, 0, 0),
    Api.STREAMS_GROUP_DESCRIBE: (0, 0, 0),
    Api.DESCRIBE_SHARE_GROUP_OFFSETS: (0, 1, 0),
    Api.ALTER_SHARE_GROUP_OFFSETS: (0, 0, 0),
    Api.DELETE_SHARE_GROUP_OFFSETS: (0, 0, 0),
    Api.NODE_STATUS: (0, 0, 0),
    Api.AUTHENTICATE: (0, 0, 0),
    Api.REPLICA_FETCH: (0, 0, 0),
    Api.REPLICA_VOTE: (0, 0, 0),
    Api.ANNOUNCE: (0, 0, 0),
    Api.TRANSFER: (0, 0, 0),
    Api.FORWARD: (0, 0, 0),
    Api.JOIN: (0, 0, 0),
    Api.CHANGE_NODE: (0, 0, 0),
    Api.RECOVER_PARTITION: (0, 0, 0),
    Api.DESCRIBE_REPLICAS: (0, 0, 0),
    Api.CHANGE_CLIENT: (0, 0, 0),
    Api.LIST_CLIENTS: (0, 0, 0),
    Api.RESERVE_PRODUCER_IDS: (0, 0, 0),
    Api.END_TXN_GROUP: (0, 0, 0),
    Api.HELD_OFFSET: (0, 0, 0),
    Api.APPEND_TIMES: (0, 0, 0),
    Api.TOPIC_TIMES: (0, 0, 0),
    Api.ATTACH: (0, 0, 0),
    Api.REGISTER_EDGE: (0, 0, 0),
    Api.CONFIRM_EDGE: (0, 0, 0),
    Api.REPORT_DOWN: (0, 0, 0),
    Api.REPORT_TREE: (0, 0, 0),
    Api.DESCRIBE_TREE: (0, 0, 0),
    Api.RELAY: (0, 0, 0),
    Api.OUTBOX: (0, 0, 0),
}

PATIENT = frozenset({Api.PRODUCE, Api.JOIN_GROUP, Api.SYNC_GROUP, Api.CONSUMER_GROUP_HEARTBEAT})
"""They may wait for disks, or for other members of a group."""

REPEATABLE = frozenset(
    {
        Api.API_VERSIONS,
        Api.APPEND_TIMES,
        Api.CONSUMER_GROUP_DESCRIBE,
        Api.DESCRIBE_CLUSTER,
        Api.DESCRIBE_CONFIGS,
        Api.DESCRIBE_GROUPS,
        Api.DESCRIBE_LOG_DIRS,
        Api.DESCRIBE_PRODUCERS,
        Api.DESCRIBE_QUORUM,
        Api.DESCRIBE_TOPIC_PARTITIONS,
        Api.DESCRIBE_TRANSACTIONS,
        Api.FETCH,
        Api.FIND_COORDINATOR,
        Api.HEARTBEAT,
        Api.LIST_CONFIG_RESOURCES,
        Api.LIST_GROUPS,
        Api.LIST_OFFSETS,
        Api.LIST_PARTITION_REASSIGNMENTS,
        Api.LIST_TRANSACTIONS,
        Api.METADATA,
        Api.NODE_STATUS,
        Api.OFFSET_FETCH,
        Api.OFFSET_FOR_LEADER_EPOCH,
        Api.TOPIC_TIMES,
    }
)
"""Carried out late, or twice, they do no harm."""


def codec_versions(api: int) -> tuple[int, int]:
    """The lowest and the highest version that can be decoded and encoded."""
    lowest, highest, _ = _VERSIONS[api]
    return lowest, highest


def can_code(api: int, version: int) -> bool:
    facts = _VERSIONS.get(api)
    return facts is not None and facts[0] <= version <= facts[1]


def is_flexible(api: int, version: int) -> bool:
    """Whether this version uses compact lengths and tagged fields, in its headers as well."""
    return version >= _VERSIONS[api][2]


def is_known_and_flexible(api: int, version: int) -> bool:
    facts = _VERSIONS.get(api)
    return facts is not None and facts[2] <= version <= facts[1]
