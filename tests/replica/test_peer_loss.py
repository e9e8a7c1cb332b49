"""Every kind of loss between nodes: cut, gone, moved, silent; and trying again."""

import asyncio
import socket
from typing import Any

import pytest

from sapwood.replica import peers as module
from sapwood.server import Limits, Listener, Request, link
from sapwood.server.link import PeerUnreachable
from tests.replica.nodes import (
    A_MIB,
    PATIENCE_S,
    asked,
    cluster,
    connections,
    echo,
    failure_of,
    free_address,
)
from tests.server.peer import Desk, Run, until

# Loss


def test_a_lost_connection_fails_all_its_requests_at_once_and_is_made_anew(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk()
        async with cluster() as nodes:
            server = await nodes.serve(desk)
            tasks = [nodes.asking(b"%d" % number) for number in range(50)]
            await until(lambda: len(desk.requests) == 50)
            (connection,) = server.connections
            connection.abort()
            for task in tasks:
                assert not (await failure_of(task)).refused
            await until(lambda: nodes.told == ["2 connected", "2 lost", "2 connected"])
            again = nodes.asking(b"again")
            await until(lambda: len(desk.requests) == 51)
            desk.futures[50].set_result(echo(desk.requests[50]))
            assert await again == b"again"

    run(scenario())


def test_the_loss_of_the_data_connection_leaves_control_alone(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk()
        async with cluster() as nodes:
            server = await nodes.serve(desk)
            control = nodes.asking(b"control")
            await until(lambda: len(desk.requests) == 1)
            data = nodes.asking(b"data", data=True)
            await until(lambda: len(desk.requests) == 2)
            desk.requests[1].connection.abort()
            await failure_of(data)
            desk.futures[0].set_result(echo(desk.requests[0]))
            assert await control == b"control"
            assert nodes.told == ["2 connected"]
            assert connections(server) == 2

    run(scenario())


def test_a_process_that_is_gone_is_told_from_a_lost_connection(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk()
        async with cluster() as nodes:
            server = await nodes.serve(desk)
            unanswered = nodes.asking(b"unanswered")
            await until(lambda: len(desk.requests) == 1)
            await server.close(grace_s=0)
            assert not (await failure_of(unanswered)).refused
            # Nobody had to ask for that.
            await until(lambda: nodes.told == ["2 connected", "2 lost", "2 gone"])
            for data in (False, True):
                failure = await failure_of(nodes.ask(b"anybody there?", data=data))
                assert failure.refused
                assert "node 2" in str(failure)
            assert nodes.told == ["2 connected", "2 lost", "2 gone"]

            await nodes.serve(echo, listener=Listener("kafka", *nodes.addresses[2]))
            assert await nodes.ask(b"back") == b"back"
            assert nodes.told[3:] == ["2 connected"]

    run(scenario())


def test_a_node_that_was_never_there_is_gone(run: Run) -> None:
    async def scenario() -> None:
        async with cluster() as nodes:
            nodes.addresses[2] = free_address()
            failures = await asyncio.gather(*(failure_of(nodes.ask(b"?")) for _ in range(10)))
            assert all(failure.refused and failure.gone for failure in failures)
            assert nodes.told == ["2 gone"]

    run(scenario())


@pytest.mark.parametrize("options", [{"routed": {2}}, {"is_own": lambda host: False}])
def test_a_refusal_that_may_be_somebody_elses_does_not_mean_that_a_node_is_gone(
    options: dict[str, Any], run: Run
) -> None:
    """A leader that is alive behind a firewall answers what is newest until it misses the others:
    none of them may lead meanwhile."""

    async def scenario() -> None:
        async with cluster(**options) as nodes:
            nodes.addresses[2] = free_address()
            failure = await failure_of(nodes.ask(b"?"))
            assert (failure.refused, failure.gone) == (True, False)
            assert nodes.told == ["2 lost"]

    run(scenario())


def test_addresses_of_this_host_are_told_from_those_of_others() -> None:
    assert all(map(link.is_of_this_host, ("127.0.0.1", "127.8.9.7", "::1", "localhost")))
    assert not any(map(link.is_of_this_host, ("192.0.2.1", "2001:db8::1", "elsewhere.invalid")))


def test_refusals_by_all_addresses_of_a_name_are_a_refusal() -> None:
    alone = ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 9)")
    both = OSError(
        "Multiple exceptions: [Errno 111] Connect call failed ('::1', 9, 0, 0), "
        "[Errno 111] Connect call failed ('127.0.0.1', 9)"
    )
    assert link._is_refusal(alone)
    assert link._is_refusal(both)
    assert not link._is_refusal(OSError(113, "No route to host"))


def test_a_node_that_moved_is_found_at_its_new_address(run: Run) -> None:
    async def scenario() -> None:
        async with cluster() as nodes:
            first = await nodes.serve(echo)
            await nodes.ask(b"here")
            await nodes.serve(echo)
            await first.close(grace_s=0)
            await until(lambda: nodes.told[-1:] == ["2 connected"] and len(nodes.told) == 3)
            assert await nodes.ask(b"there") == b"there"
            assert connections(nodes.servers[2]) == 1

    run(scenario())


def test_a_node_whose_address_nobody_knows_is_unreachable(run: Run) -> None:
    async def scenario() -> None:
        async with cluster() as nodes:
            failure = await failure_of(nodes.ask(b"?", 7))
            assert "node 7: its address is not known" in str(failure)
            await nodes.serve(echo, 7)
            assert await nodes.ask(b"found", 7) == b"found"

    run(scenario())


def test_the_loss_of_one_node_does_not_disturb_another(run: Run) -> None:
    async def scenario() -> None:
        async with cluster() as nodes:
            await nodes.serve(echo, 2)
            await nodes.serve(echo, 3)
            await asyncio.gather(nodes.ask(b"2", 2), nodes.ask(b"3", 3))
            await nodes.servers[2].close(grace_s=0)
            await until(lambda: "2 gone" in nodes.told)
            assert await nodes.ask(b"still", 3) == b"still"
            assert connections(nodes.servers[3]) == 1

    run(scenario())


# Silence


def test_a_request_that_is_answered_too_late_fails_alone(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk()

        def handler(request: Request) -> Any:
            return desk(request) if asked(request) == b"late" else echo(request)

        async with cluster() as nodes:
            server = await nodes.serve(handler)
            await nodes.ask(b"connected")
            late = nodes.asking(b"late", timeout_s=0.05)
            await until(lambda: len(desk.requests) == 1)
            assert await nodes.ask(b"other") == b"other"
            assert "not answered within 0.05 s" in str(await failure_of(late))
            desk.futures[0].set_result(echo(desk.requests[0]))
            assert await nodes.ask(b"after") == b"after"
            assert connections(server) == 1

    run(scenario())


def test_a_connection_on_which_nothing_is_heard_is_given_up_with_all_its_requests(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "SILENCE_S", 0.05)

    async def scenario() -> None:
        desk = Desk()
        async with cluster() as nodes:
            await nodes.serve(desk)
            patient = nodes.asking(b"patient", timeout_s=3600.0)
            await until(lambda: len(desk.requests) == 1)
            # Each waits for less than the silence that is allowed, but together they notice.
            while not patient.done():
                await failure_of(nodes.ask(b"heartbeat", timeout_s=0.03))
            assert "nothing was heard" in str(await failure_of(patient))
            await until(lambda: nodes.told[:3] == ["2 connected", "2 lost", "2 connected"])

    run(scenario())


def test_a_node_that_accepts_and_says_nothing_costs_no_longer_than_the_time_allowed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CONNECT_TIMEOUT_S", 0.2)

    async def scenario() -> None:
        with socket.socket() as silent:  # as a process that was stopped: the kernel accepts for it
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            async with cluster() as nodes:
                nodes.addresses[2] = silent.getsockname()
                impatient, patient = await asyncio.gather(
                    failure_of(nodes.ask(b"?", timeout_s=0.01)),
                    failure_of(nodes.ask(b"?", timeout_s=PATIENCE_S)),
                )
                assert "within 0.01 s" in str(impatient)
                assert "within 0.2 s" in str(patient)
                assert not impatient.refused
                assert not patient.refused
                assert nodes.told == ["2 lost"]

    run(scenario())


def test_a_node_that_takes_nothing_is_sent_no_more_than_fits(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "MOST_UNSENT_BYTES", A_MIB)

    async def scenario() -> None:
        desk = Desk()
        async with cluster() as nodes:
            await nodes.serve(desk, limits=Limits(max_outstanding_peer_requests=1))
            first = nodes.asking(b"first")
            await until(lambda: len(desk.requests) == 1)
            tasks = [nodes.asking(bytes(A_MIB)) for _ in range(64)]
            await until(lambda: any(task.done() for task in tasks))
            failed = next(task for task in tasks if task.done())
            assert "doesn't take" in str(await failure_of(failed))
            assert not first.done()
            await nodes.peers.close()
            await asyncio.gather(first, *tasks, return_exceptions=True)

    run(scenario())


# Trying again


def test_pauses_grow_to_a_second_and_there_is_none_after_a_success() -> None:
    peer = module._Peer(2)
    gone = PeerUnreachable("gone")
    pauses, now = [], 100.0
    for _ in range(2000):
        for lane in (peer.control, peer.data):
            lane.failures_before = peer.failures
        peer.failed(peer.control, gone, now)
        peer.failed(peer.data, gone, now)  # at about the same time: that counts as one
        pauses.append(round(peer.not_before - now, 3))
        now = peer.not_before
    assert pauses == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64] + [1.0] * 1994
    peer.served()
    assert peer.not_before == 0.0
    peer.control.failures_before = 0
    peer.failed(peer.control, gone, now)
    assert round(peer.not_before - now, 3) == 0.02


def test_the_first_attempt_after_a_success_is_not_delayed(run: Run) -> None:
    async def scenario() -> None:
        async with cluster() as nodes:
            nodes.addresses[2] = free_address()
            for _ in range(3):
                await failure_of(nodes.ask(b"?"))
            server = await nodes.serve(echo, listener=Listener("kafka", *nodes.addresses[2]))
            await nodes.ask(b"back")
            assert nodes.peers._peers[2].failures == 3
            (connection,) = server.connections
            connection.abort()
            await until(lambda: nodes.told[-1] == "2 lost")
            assert nodes.peers._peers[2].not_before == 0.0

    run(scenario())


def test_one_that_accepts_us_and_hangs_up_is_called_with_ever_longer_pauses(run: Run) -> None:
    async def scenario() -> None:
        async with cluster() as nodes:
            server = await nodes.serve(echo)
            await nodes.ask(b"once")
            peer = nodes.peers._peers[2]
            for _ in range(3):
                known = nodes.told.count("2 connected")
                next(iter(server.connections)).abort()
                await until(lambda known=known: nodes.told.count("2 connected") > known)  # type: ignore[misc]
            assert peer.failures == 2

    run(scenario())


# The end


def test_closing_fails_what_waits_and_all_that_comes_later(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk()
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            async with cluster() as nodes:
                server = await nodes.serve(desk)
                nodes.addresses[3] = silent.getsockname()
                waiting = [nodes.asking(b"?"), nodes.asking(b"?", data=True)]
                connecting = nodes.asking(b"?", node=3)
                await until(lambda: len(desk.requests) == 2)
                await nodes.peers.close()
                for task in (*waiting, connecting):
                    assert not (await failure_of(task)).refused
                assert "closed" in str(await failure_of(nodes.ask(b"later")))
                await until(lambda: not server.connections)
                assert nodes.told == ["2 connected"]
                await nodes.peers.close()

    run(scenario())


def test_it_is_known_since_when_a_node_is_away(run: Run) -> None:
    async def scenario() -> None:
        async with cluster() as nodes:
            server = await nodes.serve(echo)
            assert nodes.peers.lost_for_s(2) is None
            await nodes.ask(b"hello")
            assert nodes.peers.lost_for_s(2) is None
            address = nodes.addresses[2]
            await server.close(grace_s=0)
            await until(lambda: nodes.told[-1] == "2 gone")
            first = nodes.peers.lost_for_s(2)
            assert first is not None
            await until(lambda: (nodes.peers.lost_for_s(2) or 0.0) > first)
            await nodes.serve(echo, listener=Listener("kafka", *address))
            await nodes.ask(b"back")
            assert nodes.peers.lost_for_s(2) is None

    run(scenario())
