"""What the client believes of the cluster, and when it looks again."""

from sapwood.client.cluster import Broker, ClusterView, Metadata, Partition, Topic
from sapwood.client.config import ClientConfig
from sapwood.wire.errors import ErrorCode

CONFIG = ClientConfig(
    bootstrap=[("a", 1)], backoff_ms=50, backoff_max_ms=400, topic_wait_ms=1000,
    metadata_max_age_ms=60_000,
)  # fmt: skip
BROKERS = {number: Broker(number, "host", 9092 + number, None) for number in (1, 2)}
NEVER = float("inf")


def topic(
    name: str, *leaders: tuple[int, int], error: int = 0, topic_id: bytes = b"i" * 16
) -> Topic:
    partitions = {
        number: Partition(number, leader, epoch, (1, 2), (1,), ())
        for number, (leader, epoch) in enumerate(leaders)
    }
    return Topic(name, topic_id, False, error, partitions)


def told(*topics: Topic) -> Metadata:
    return Metadata("id", 1, BROKERS, {each.name: each for each in topics})


def leader_of(view: ClusterView, name: str = "t", partition: int = 0) -> int | None:
    found = view.leader(name, partition)
    return found.leader if found else None


def test_nothing_wanted_means_nothing_to_look_for() -> None:
    view = ClusterView(CONFIG)
    view.apply(told(), 0.0, [])
    assert view.refresh_at_ms() == NEVER


def test_a_newly_wanted_topic_is_looked_for_at_once_and_then_kept_fresh() -> None:
    view = ClusterView(CONFIG)
    view.want("t")
    assert view.refresh_at_ms() == -NEVER
    view.apply(told(topic("t", (1, 0))), 10.0, ["t"])
    assert leader_of(view) == 1
    assert view.refresh_at_ms() == 60_010.0


def test_fruitless_looks_are_spaced_out() -> None:
    view = ClusterView(CONFIG)
    view.want("t")
    moments = []
    now_ms = 0.0
    for _ in range(6):
        view.apply(told(topic("t", error=ErrorCode.LEADER_NOT_AVAILABLE)), now_ms, ["t"])
        moments.append(view.refresh_at_ms() - now_ms)
        now_ms = view.refresh_at_ms()
    assert moments == [50, 100, 200, 400, 400, 400]
    view.apply(told(topic("t", (1, 0))), now_ms, ["t"])
    view.invalidate()
    assert view.refresh_at_ms() == -NEVER


def test_a_broker_that_lags_behind_does_not_bring_a_deposed_leader_back() -> None:
    view = ClusterView(CONFIG)
    view.want("t")
    view.apply(told(topic("t", (2, 5))), 0.0, ["t"])
    view.apply(told(topic("t", (1, 4))), 1.0, ["t"])
    assert leader_of(view) == 2
    view.apply(told(topic("t", (1, 6))), 2.0, ["t"])
    assert leader_of(view) == 1


def test_a_topic_made_anew_starts_from_its_own_epochs() -> None:
    view = ClusterView(CONFIG)
    view.want("t")
    view.apply(told(topic("t", (2, 5))), 0.0, ["t"])
    view.apply(told(topic("t", (1, 0), topic_id=b"another")), 1.0, ["t"])
    assert leader_of(view) == 1


def test_a_partition_that_is_not_there_yet_keeps_the_view_looking() -> None:
    view = ClusterView(CONFIG)
    view.want("t")
    view.apply(told(topic("t", (1, 0))), 0.0, ["t"])
    view.want("t", 1)
    view.apply(told(topic("t", (1, 0))), 1.0, ["t"])
    assert view.refresh_at_ms() == 51.0
    view.apply(told(topic("t", (1, 0), (2, 0))), 60.0, ["t"])
    assert leader_of(view, partition=1) == 2
    assert view.refresh_at_ms() == 60_060.0


def test_an_answer_about_one_topic_does_not_count_for_the_others() -> None:
    view = ClusterView(CONFIG)
    view.want("t")
    view.want("u")
    view.apply(told(topic("t", (1, 0))), 0.0, ["t"])
    assert view.refresh_at_ms() <= 50.0
    view.apply(told(topic("t", (1, 0)), topic("u", (1, 0))), 1.0, ["t", "u"])
    view.invalidate()
    view.apply(told(topic("t", (1, 0))), 2.0, ["t"])
    assert view.refresh_at_ms() == -NEVER


def test_patience_with_an_unknown_topic_ends_and_with_a_bad_name_never_starts() -> None:
    view = ClusterView(CONFIG)
    assert view.hopeless("t", 0, 0.0, 5000.0) is None, "nobody has answered yet"
    view.want("t")
    view.apply(told(topic("t", error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)), 0.0, ["t"])
    assert view.hopeless("t", 0, 0.0, 999.0) is None
    trouble = view.hopeless("t", 0, 0.0, 1000.0)
    assert trouble is not None
    assert trouble.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert view.wanted == []
    view.want("t!")
    view.apply(told(topic("t!", error=ErrorCode.INVALID_TOPIC_EXCEPTION)), 0.0, ["t!"])
    trouble = view.hopeless("t!", None, 0.0, 0.0)
    assert trouble is not None
    assert trouble.code is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_topic_that_nobody_has_been_asked_for_yet_is_not_unknown() -> None:
    view = ClusterView(CONFIG)
    view.want("t")
    view.apply(told(topic("t", (1, 0))), 0.0, ["t"])
    view.want("u")
    assert view.hopeless("u", 0, 0.0, 5000.0) is None, "the answer was about another topic"
    view.apply(told(topic("t", (1, 0))), 5000.0, ["t", "u"])
    trouble = view.hopeless("u", 0, 0.0, 5000.0)
    assert trouble is not None
    assert trouble.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    view.want("u")
    assert view.hopeless("u", 0, 0.0, 5000.0) is None, "it may have been created since"


def test_a_leader_that_is_not_among_the_brokers_is_no_leader() -> None:
    view = ClusterView(CONFIG)
    view.want("t")
    view.apply(told(topic("t", (9, 0))), 0.0, ["t"])
    assert leader_of(view) is None
    assert view.refresh_at_ms() == 50.0
