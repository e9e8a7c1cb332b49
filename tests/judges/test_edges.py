"""The judges' everyday work through an edge that hangs below another edge: nobody can tell."""

from collections.abc import Iterator

import pytest

import sapwood
from tests.judges import (
    test_admin,
    test_everyday,
    test_groups,
    test_matrix,
    test_newer_groups,
    test_semantics,
    test_transactions,
)
from tests.judges.test_groups import six  # noqa: F401 - a fixture
from tests.judges.test_newer_groups import topics  # noqa: F401 - a fixture
from tests.judges.test_transactions import client  # noqa: F401 - a fixture


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with sapwood.Cluster(nodes=3) as cluster:
        above = cluster.add_edge()
        yield cluster.edge_address(cluster.add_edge(parent=above))


test_day = test_everyday.test_a_client_creates_fills_reads_searches_alters_and_deletes_a_topic
test_waiting = test_everyday.test_a_consumer_that_waits_at_the_end_gets_what_is_written_later
test_kcat_in_a_group = test_groups.test_kcat_reads_as_a_member_of_a_group
test_static_member = (
    test_groups.test_a_static_member_that_is_restarted_keeps_its_partitions_and_disturbs_nobody
)
test_commit = test_groups.test_a_commit_keeps_what_it_says_about_itself
test_added_partitions = test_newer_groups.test_partitions_that_are_added_are_handed_out
test_committed = test_transactions.test_every_client_reads_what_was_committed_and_nothing_else
test_fencing = test_transactions.test_a_second_producer_with_the_same_id_fences_the_first
test_out_of_range = test_semantics.test_a_position_before_the_start_or_past_the_end_is_out_of_range
test_sixty_partitions = test_semantics.test_each_of_sixty_partitions_keeps_its_own_messages
test_large_messages = test_matrix.test_a_message_of_eight_megabytes_travels_between_all_clients
test_broker_configs = test_admin.test_every_admin_reads_a_brokers_configuration
test_log_directories = test_admin.test_log_directories_tell_the_size_of_every_partition
test_pages = test_admin.test_topic_partitions_are_described_page_by_page
test_recreated = test_admin.test_a_topic_keeps_its_id_and_a_new_one_of_the_same_name_gets_another
