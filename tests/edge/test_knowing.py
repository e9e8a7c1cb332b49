"""What an edge remembers of the cluster, and says of it while it is cut off."""

from pathlib import Path

from sapwood.disk import Journal, OsDisk
from sapwood.edge.knowing import Known
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode
from sapwood.wire.frames import encode_response_frame
from tests.broker.asking import on_a_loop

ID = bytes(range(16))


def topic(name: str, partitions: int, topic_id: bytes = ID) -> Struct:
    return Struct(
        error_code=0,
        name=name,
        topic_id=topic_id,
        is_internal=name.startswith("__"),
        partitions=[Struct()] * partitions,
    )


def answer(*topics: Struct) -> Struct:
    return Struct(cluster_id="c", topics=list(topics))


@on_a_loop
async def test_what_was_learnt_is_known_after_a_restart(tmp_path: Path) -> None:
    journal = Journal.open(OsDisk(), str(tmp_path / "journal"))
    known = Known(journal)
    assert not known
    keys = [Struct(api_key=0, min_version=3, max_version=12)]
    known.learn_versions(Struct(error_code=0, api_keys=keys))
    known.learn_topics(answer(topic("orders", 3)), is_all=True)
    await journal.flush()
    journal.close()
    known = Known(Journal.open(OsDisk(), str(tmp_path / "journal")))
    assert known
    found = known.find("orders", b"")
    assert found is not None
    assert found[1].partition_count == 3
    assert known.find(None, ID) == found
    (key,) = known.api_versions(3)[1].api_keys
    assert (key.api_key, key.min_version, key.max_version) == (0, 3, 12)
    version, refusal = known.api_versions(99)
    assert (version, refusal.error_code) == (0, ErrorCode.UNSUPPORTED_VERSION)


@on_a_loop
async def test_what_exists_no_more_is_forgotten_and_an_answer_about_some_forgets_none(
    tmp_path: Path,
) -> None:
    known = Known(Journal.open(OsDisk(), str(tmp_path / "journal")))
    known.learn_topics(answer(topic("a", 1, b"a" * 16), topic("b", 1, b"b" * 16)), is_all=True)
    known.learn_topics(answer(topic("c", 2, b"c" * 16)), is_all=False)
    assert known.find("a", b"") is not None
    known.learn_topics(answer(topic("c", 2, b"c" * 16)), is_all=True)
    assert known.find("a", b"") is None
    assert known.find(None, b"a" * 16) is None
    assert known.find("c", b"") is not None


@on_a_loop
async def test_metadata_can_be_told_in_every_version(tmp_path: Path) -> None:
    known = Known(Journal.open(OsDisk(), str(tmp_path / "journal")))
    known.learn_topics(answer(topic("orders", 2)), is_all=True)
    for version in range(14):
        wanted = [Struct(name="orders", topic_id=bytes(16)), Struct(name="x", topic_id=bytes(16))]
        for each in (None, wanted):
            found = known.metadata(version, each)
            encode_response_frame(Api.METADATA, version, 1, found)
        errors = [it.error_code for it in found.topics]
        assert errors == [0, ErrorCode.LEADER_NOT_AVAILABLE]
        assert len(found.topics[0].partitions) == 2
