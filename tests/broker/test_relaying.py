"""What comes in through edges, at the core node that it comes to."""

from pathlib import Path

from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct, decode_response
from sapwood.wire.errors import ErrorCode
from sapwood.wire.frames import decode_response_header, encode_request_frame
from tests.broker.asking import Asking, on_a_loop, started
from tests.broker.transacting import Producer


class Edge(Asking):
    """Asks everything as an edge that hands it on; `opened_after_s` is its client's."""

    def __init__(self, asking: Asking) -> None:
        super().__init__(asking.broker)
        self.peer.node = 10_000
        self.peer.opened_at = 1e6  # of the link
        self.opened_after_s = 0.0
        self.closes = False

    async def ask(self, api: Api, version: int, message: Struct) -> Struct | None:
        frame = b"".join(encode_request_frame(api, version, 7, "test", message))[4:]
        answer = await self.relayed(frame)
        if not answer.frame:
            return None
        _, start = decode_response_header(api, version, answer.frame)
        return decode_response(api, version, answer.frame, start)

    async def relayed(self, frame: bytes) -> Struct:
        message = Struct(
            listener="kafka",
            address="10.1.2.3",
            principal=None,
            opened_after_s=self.opened_after_s,
            here=False,
            frame=frame,
        )
        answer = await super().ask(Api.RELAY, 0, message)
        assert answer is not None
        self.closes = answer.closes
        return answer


@on_a_loop
async def test_clients_of_edges_are_answered_as_if_they_were_here(tmp_path: Path) -> None:
    async with started(tmp_path) as asking:
        edge = Edge(asking)
        await edge.create("t", partitions=2)
        assert (await edge.produced("t", partition=1)).base_offset == 0
        assert (await edge.produced("t")).base_offset == 0
        assert (await edge.fetch("t")).high_watermark == 1
        assert (await edge.ask(Api.LIST_GROUPS, 4, Struct(states_filter=[]))) is not None
        assert not edge.closes


@on_a_loop
async def test_a_produce_that_wants_no_answer_gets_none_but_the_edge_does(tmp_path: Path) -> None:
    async with started(tmp_path) as asking:
        edge = Edge(asking)
        await edge.create("t")
        assert await edge.produce("t", acks=0) is None
        assert not edge.closes
        assert await edge.produce("nowhere", acks=0) is None
        assert edge.closes


@on_a_loop
async def test_an_empty_frame_is_answered_with_a_sign_of_life(tmp_path: Path) -> None:
    async with started(tmp_path) as asking:
        answer = await Edge(asking).relayed(b"")
        assert (answer.error_code, bytes(answer.frame)) == (0, b"")


@on_a_loop
async def test_what_is_for_nodes_or_is_no_request_costs_the_client_its_connection(
    tmp_path: Path,
) -> None:
    async with started(tmp_path) as asking:
        edge = Edge(asking)
        for_nodes = encode_request_frame(
            Api.RESERVE_PRODUCER_IDS, 0, 7, None, Struct(node_id=0, count=1)
        )
        unknown_version = b"\0\3\0\143\0\0\0\7\xff\xff"
        for frame in (b"".join(for_nodes)[4:], unknown_version, b"\0\3\0\1", b"\0"):
            answer = await edge.relayed(frame)
            assert answer.error_code == ErrorCode.INVALID_REQUEST
            assert answer.closes
            assert bytes(answer.frame) == b""


@on_a_loop
async def test_a_late_request_of_an_older_connection_at_an_edge_is_refused(tmp_path: Path) -> None:
    async with started(tmp_path) as asking:
        await asking.create("t")
        edge = Edge(asking)
        edge.opened_after_s = 5.0
        app = await Producer(edge).begin()
        await app.added("t")
        edge.opened_after_s = 4.0
        assert await app.end(True) == ErrorCode.NOT_COORDINATOR
        assert edge.closes
        edge.opened_after_s = 6.0
        assert await app.end(True) == 0
        assert not edge.closes


@on_a_loop
async def test_an_edge_waits_for_what_is_not_there_yet_instead_of_being_out_of_range(
    tmp_path: Path,
) -> None:
    async with started(tmp_path) as asking:
        await asking.create("t")
        asking.peer.node = 10_000
        found = await asking.fetch("t", 0, max_wait_ms=1)
        assert (found.error_code, found.high_watermark) == (0, 0)


@on_a_loop
async def test_to_assign_a_partition_to_the_edge_that_shows_it_changes_nothing(
    tmp_path: Path,
) -> None:
    async with started(tmp_path) as asking:
        await asking.create("t")
        edge_id = (
            await asking.answer(
                Api.REGISTER_EDGE, 0, Struct(edge_id=-1, host="e", port=1, ports=[], wish="")
            )
        ).edge_id
        for replicas, expected in (
            ([edge_id], ErrorCode.NONE),
            ([edge_id + 1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ):
            wanted = Struct(partition_index=0, replicas=replicas)
            message = Struct(timeout=1000, topics=[Struct(name="t", partitions=[wanted])])
            answer = await Edge(asking).answer(Api.ALTER_PARTITION_REASSIGNMENTS, 0, message)
            assert answer.responses[0].partitions[0].error_code == expected
        assert asking.broker.state.image.topics["t"].partitions == [[0]]
