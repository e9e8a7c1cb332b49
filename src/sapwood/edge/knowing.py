"""What an edge with an outbox remembers of the cluster, to answer for it while it is cut off.

A client that is to send something asks two questions first: what can be asked here, and which
partitions a topic has. Both were answered from above before; what was said is kept in the outbox's
journal, so that an edge can be started while it is cut off.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from sapwood.disk import Journal
from sapwood.edge.topics import NO_TOPIC_ID
from sapwood.wire.apis import Api, codec_versions
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode

MOST_TOPICS = 20_000

_VERSIONS = b"versions"
_CLUSTER = b"cluster"
_TOPIC = b"topic/"
_BY_ID = 12
"""From this version of Metadata on a topic may be asked for by its id."""


class KnownTopic(msgspec.Struct, array_like=True, frozen=True):
    topic_id: bytes
    partition_count: int
    is_internal: bool


class Known:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._versions: list[tuple[int, int, int]] = []
        if (stored := journal.get(_VERSIONS)) is not None:
            self._versions = msgspec.msgpack.decode(stored, type=list[tuple[int, int, int]])
        self._topics = {
            key.removeprefix(_TOPIC).decode(): msgspec.msgpack.decode(value, type=KnownTopic)
            for key, value in journal.items(_TOPIC)
        }
        self._names = {it.topic_id: name for name, it in self._topics.items()}

    def __bool__(self) -> bool:
        """Whether anything can be said."""
        return bool(self._versions)

    # -- from above --------------------------------------------------------------------------

    def learn_versions(self, answer: Struct) -> None:
        found = [(it.api_key, it.min_version, it.max_version) for it in answer.api_keys]
        if found and not answer.error_code:
            self._versions = found
            self._journal.put(_VERSIONS, msgspec.msgpack.encode(found))

    def learn_topics(self, answer: Struct, *, is_all: bool) -> None:
        """`is_all`: what isn't in the answer doesn't exist."""
        if cluster_id := getattr(answer, "cluster_id", None):
            self._journal.put(_CLUSTER, cluster_id.encode())
        there = set()
        for topic in answer.topics:
            if topic.error_code or not topic.name:
                continue
            there.add(topic.name)
            before = self._topics.get(topic.name)
            topic_id = getattr(topic, "topic_id", before.topic_id if before else NO_TOPIC_ID)
            is_internal = getattr(topic, "is_internal", False)
            self._learn(topic.name, KnownTopic(topic_id, len(topic.partitions), is_internal))
        if is_all:
            for name in self._topics.keys() - there:
                self._forget(name)

    def _learn(self, name: str, topic: KnownTopic) -> None:
        before = self._topics.get(name)
        if before == topic or (before is None and len(self._topics) >= MOST_TOPICS):
            return
        if before is not None:
            self._names.pop(before.topic_id, None)
        self._topics[name] = topic
        self._names[topic.topic_id] = name
        self._journal.put(_TOPIC + name.encode(), msgspec.msgpack.encode(topic))

    def _forget(self, name: str) -> None:
        self._names.pop(self._topics.pop(name).topic_id, None)
        self._journal.put(_TOPIC + name.encode(), None)

    # -- for below ---------------------------------------------------------------------------

    def find(self, name: str | None, topic_id: bytes) -> tuple[str, KnownTopic] | None:
        """By its name, or, if there is none, by its id."""
        name = self._names.get(topic_id) if name is None else name
        topic = None if name is None else self._topics.get(name)
        return None if name is None or topic is None else (name, topic)

    def api_versions(self, version: int) -> tuple[int, Struct]:
        """And in which version to say it."""
        lowest, highest = codec_versions(Api.API_VERSIONS)
        error_code = ErrorCode.NONE
        if not lowest <= version <= highest:
            version, error_code = 0, ErrorCode.UNSUPPORTED_VERSION
        keys = [
            Struct(api_key=key, min_version=first, max_version=last)
            for key, first, last in self._versions
        ]
        return version, Struct(error_code=int(error_code), api_keys=keys, throttle_time=0)

    def metadata(self, version: int, wanted: Iterable[Struct] | None) -> Struct:
        """Its nodes are still to be written in."""
        if wanted is None:
            topics = [_described(name, it) for name, it in sorted(self._topics.items())]
        else:
            topics = [self._described(version, it) for it in wanted]
        cluster_id = self._journal.get(_CLUSTER)
        return Struct(
            brokers=[],
            cluster_id=None if cluster_id is None else cluster_id.decode(),
            controller_id=-1,
            topics=topics,
            error_code=0,
            throttle_time=0,
        )

    def _described(self, version: int, wanted: Struct) -> Struct:
        topic_id = getattr(wanted, "topic_id", NO_TOPIC_ID)
        is_by_id = version >= _BY_ID and topic_id != NO_TOPIC_ID
        name = None if is_by_id else wanted.name
        found = self.find(name, topic_id)
        if found is not None:
            return _described(*found)
        # Whether there is such a topic nobody can say from here.
        code = int(ErrorCode.LEADER_NOT_AVAILABLE)
        return Struct(
            error_code=code, name=name, topic_id=topic_id, is_internal=False, partitions=[]
        )


def _described(name: str, topic: KnownTopic) -> Struct:
    partitions = [
        Struct(
            error_code=0,
            partition_index=index,
            leader_id=0,
            leader_epoch=-1,
            replica_nodes=[],
            isr_nodes=[],
            offline_replicas=[],
        )
        for index in range(topic.partition_count)
    ]
    return Struct(
        error_code=0,
        name=name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=partitions,
    )
