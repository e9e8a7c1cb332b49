"""Links between nodes: whole, cut in one direction or both, slow, and healed."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from sapwood.node.links import Links
from tests.helpers import eventually


class Station:
    """Stands for a node: accepts connections."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self.accepted: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self.accepted.append(self._server.accept()[0])
                self.accepted[-1].settimeout(10)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # closed before
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()
        for each in self.accepted:
            each.close()


class Net:
    """Two stations, 0 and 1, and a connection from 0 to 1 through the link between them."""

    def __init__(self, links: Links, stations: list[Station]) -> None:
        self.links = links
        self.stations = stations
        self.routes = links.open([0, 1])
        for number, station in enumerate(stations):
            links.place(number, station.address)

    def connect(self, a: int, b: int) -> socket.socket:
        host, _, port = self.routes[a, b].rpartition(":")
        return socket.create_connection((host, int(port)), 10)

    def pair(self) -> tuple[socket.socket, socket.socket]:
        """Both ends of a connection from 0 to 1."""
        near = self.connect(0, 1)
        near.sendall(b"?")
        far = eventually(lambda: self.stations[1].accepted)[-1]
        assert far.recv(1) == b"?"
        return near, far


@pytest.fixture
def net() -> Iterator[Net]:
    links = Links()
    stations = [Station(), Station()]
    yield Net(links, stations)
    links.close()
    for station in stations:
        station.close()


def arrives(end: socket.socket, expected: bytes) -> bool:
    end.settimeout(10)
    found = b""
    while len(found) < len(expected) and (more := end.recv(len(expected) - len(found))):
        found += more
    return found == expected


def has_ended(end: socket.socket) -> bool:
    end.settimeout(10)
    return end.recv(1) == b""


def nothing_arrives(end: socket.socket) -> bool:
    """As far as can be seen in a moment; what must not pass is seen to pass afterwards."""
    end.settimeout(0.1)
    with pytest.raises(TimeoutError):
        end.recv(1)
    return True


def test_a_whole_link_carries_both_ways_and_tells_of_the_end(net: Net) -> None:
    near, far = net.pair()
    with near:
        near.sendall(b"hello" * 10_000)
        assert arrives(far, b"hello" * 10_000)
        far.sendall(b"good day")
        assert arrives(near, b"good day")
    assert has_ended(far)


def test_a_cut_link_carries_nothing_either_way_until_it_is_healed(net: Net) -> None:
    near, far = net.pair()
    with near:
        net.links.cut([(0, 1), (1, 0)])
        near.sendall(b"forth")
        far.sendall(b"back")
        assert nothing_arrives(far)
        assert nothing_arrives(near)
        net.links.heal()
        assert arrives(far, b"forth")
        assert arrives(near, b"back")


@pytest.mark.parametrize("way", [(0, 1), (1, 0)])
def test_a_link_may_be_cut_in_one_direction_only(net: Net, way: tuple[int, int]) -> None:
    ends = net.pair()
    sender, receiver = ends[way[0]], ends[way[1]]
    with ends[0]:
        net.links.cut([way])
        sender.sendall(b"lost")
        receiver.sendall(b"heard")
        assert arrives(sender, b"heard")
        assert nothing_arrives(receiver)
        net.links.heal([way])
        assert arrives(receiver, b"lost")


@pytest.mark.parametrize("way", [(0, 1), (1, 0)])
def test_over_a_cut_link_new_connections_hang_and_are_not_refused(
    net: Net, way: tuple[int, int]
) -> None:
    net.links.cut([way])
    with net.connect(0, 1) as near:
        near.sendall(b"anybody there?")
        assert nothing_arrives(near)
        assert net.stations[1].accepted == []
        net.links.heal()
        far = eventually(lambda: net.stations[1].accepted)[0]
        assert arrives(far, b"anybody there?")


def test_the_end_of_a_node_is_not_heard_of_through_a_cut_link(net: Net) -> None:
    near, far = net.pair()
    net.links.cut([(0, 1)])
    near.close()
    assert nothing_arrives(far)
    net.links.heal()
    assert has_ended(far)


def test_where_nobody_listens_the_connection_ends(net: Net) -> None:
    net.stations[1].close()
    with net.connect(0, 1) as near:
        near.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            assert near.recv(1) == b""


def test_a_slow_link_carries_everything_in_order_and_not_before_its_time(net: Net) -> None:
    near, far = net.pair()
    with near:
        net.links.delay([(0, 1)], 200)
        started = time.monotonic()
        for number in range(10):
            near.sendall(b"%d" % number)
        assert arrives(far, b"0123456789")
        assert time.monotonic() - started >= 0.2
        net.links.heal()
        near.sendall(b"quick")
        assert arrives(far, b"quick")


def test_the_process_ends_with_whoever_started_it() -> None:
    links = Links()
    links.open([0, 1])
    links.close()
    with pytest.raises((RuntimeError, ValueError)):
        links.heal()
