"""The proxy against a server that echoes: what passes, what stops, what comes late."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from chaos.proxy import Proxy
from tests.helpers import eventually

TIMEOUT_S = 20
NOTHING_S = 0.3  # long enough for a byte that isn't held up to be here


class Echo:
    """Sends back what it gets, and remembers it."""

    def __init__(self) -> None:
        self.received = b""
        self.ends = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    self.received += data
                    connection.sendall(data)
            except OSError:
                pass
        self.ends += 1


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy() as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy, echo: Echo) -> Iterator[socket.socket]:
    """A connection over the hop, known to work."""
    address = proxy.open(["hop"])["hop"]
    proxy.lead({"hop": echo.address})
    with connected(address) as connection:
        connection.sendall(b"hello")
        assert exactly(connection, 5) == b"hello"
        yield connection


def connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), TIMEOUT_S)


def exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (some := connection.recv(count - len(data))):
        data += some
    return data


def is_silent(connection: socket.socket) -> bool:
    connection.settimeout(NOTHING_S)
    try:
        connection.recv(1)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(TIMEOUT_S)
    return False


def test_much_data_passes_unchanged(client: socket.socket) -> None:
    data = bytes(range(256)) * 8192
    threading.Thread(target=client.sendall, args=(data,), daemon=True).start()
    assert exactly(client, len(data)) == data


def test_a_cut_stops_bytes_without_ending_anything_and_healing_lets_them_through(
    proxy: Proxy, echo: Echo, client: socket.socket
) -> None:
    proxy.cut(["hop"])
    client.sendall(b"more")
    assert is_silent(client)
    assert (echo.received, echo.ends) == (b"hello", 0)
    proxy.heal(["hop"])
    assert exactly(client, 4) == b"more"


def test_a_cut_on_the_way_back_loses_answers_but_not_requests(
    proxy: Proxy, echo: Echo, client: socket.socket
) -> None:
    proxy.cut(["hop"], "back")
    client.sendall(b"more")
    eventually(lambda: echo.received == b"hellomore")
    assert is_silent(client)
    proxy.heal(["hop"])
    assert exactly(client, 4) == b"more"


def test_a_cut_on_the_way_forth_holds_requests_up(
    proxy: Proxy, echo: Echo, client: socket.socket
) -> None:
    proxy.cut(["hop"], "forth")
    client.sendall(b"more")
    assert is_silent(client)
    assert echo.received == b"hello"
    proxy.heal(["hop"])
    assert exactly(client, 4) == b"more"


def test_a_new_connection_over_a_cut_hop_hangs(proxy: Proxy, echo: Echo) -> None:
    address = proxy.open(["hop"])["hop"]
    proxy.lead({"hop": echo.address})
    proxy.cut(["hop"])
    with connected(address) as connection:
        connection.sendall(b"hello")
        assert is_silent(connection)
        assert echo.received == b""
        proxy.heal(["hop"])
        assert exactly(connection, 5) == b"hello"


def test_other_hops_are_not_touched(proxy: Proxy, echo: Echo, client: socket.socket) -> None:
    other = proxy.open(["other"])["other"]
    proxy.lead({"other": echo.address})
    proxy.cut(["hop"])
    with connected(other) as connection:
        connection.sendall(b"hi")
        assert exactly(connection, 2) == b"hi"


def test_a_slow_hop_delays_each_direction(proxy: Proxy, client: socket.socket) -> None:
    proxy.slow(["hop"], 1000 * NOTHING_S)
    began = time.monotonic()
    client.sendall(b"more")
    assert exactly(client, 4) == b"more"
    assert time.monotonic() - began >= 2 * NOTHING_S


def test_a_narrow_hop_lets_few_bytes_through(
    proxy: Proxy, echo: Echo, client: socket.socket
) -> None:
    proxy.narrow(["hop"], 2_000)
    client.sendall(bytes(50_000))
    assert exactly(client, 1) == b"\0"
    assert len(echo.received) < 50_000
    proxy.heal(["hop"])
    assert exactly(client, 49_999) == bytes(49_999)


def test_a_reset_ends_connections_at_both_ends_and_new_ones_work(
    proxy: Proxy, echo: Echo, client: socket.socket
) -> None:
    host, port = client.getpeername()
    proxy.reset(["hop"])
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    eventually(lambda: echo.ends == 1)
    with connected(f"{host}:{port}") as connection:
        connection.sendall(b"again")
        assert exactly(connection, 5) == b"again"


def test_the_end_of_a_connection_is_passed_on(echo: Echo, client: socket.socket) -> None:
    client.shutdown(socket.SHUT_WR)
    assert client.recv(1) == b""
    eventually(lambda: echo.ends == 1)


def test_nobody_behind_a_hop_is_the_end_of_the_connection(proxy: Proxy) -> None:
    with connected(proxy.open(["nowhere"])["nowhere"]) as connection:
        assert connection.recv(1) == b""
