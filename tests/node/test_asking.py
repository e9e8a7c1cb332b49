"""One node asked by itself: what a tool is told when the answer isn't what it should be."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sapwood.node.asking import NoAnswer, NodeConnection
from sapwood.node.layout import free_port


@contextmanager
def somebody_who_says(answer: bytes | None) -> Iterator[str]:
    """Reads a request, says that, and hangs up; None says nothing and stays."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def speak() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                if answer is None:
                    connection.recv(1)
                else:
                    connection.sendall(answer)

        thread = threading.Thread(target=speak)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (b"", "closed the connection"),
        (b"\0\0\0\x09\0\0", "closed the connection"),
        (b"\x7f\xff\xff\xff", "an answer of 2147483647 bytes"),
        (b"\0\0\0\x02\0\0", "cut short"),
        (b"\0\0\0\x06\0\0\0\x01\0\xff", "127.0.0.1"),
    ],
)
def test_a_bad_answer_is_one_error_that_names_the_address(answer: bytes, complaint: str) -> None:
    with (
        somebody_who_says(answer) as address,
        NodeConnection(address) as connection,
        pytest.raises(NoAnswer, match=complaint) as caught,
    ):
        connection.status()
    assert address in str(caught.value)


def test_an_answer_that_does_not_come_is_given_up() -> None:
    with (
        somebody_who_says(None) as address,
        NodeConnection(address, timeout_s=0.1) as connection,
        pytest.raises(NoAnswer, match="timed out"),
    ):
        connection.status()


def test_where_nobody_listens_that_is_said_at_once() -> None:
    with pytest.raises(NoAnswer, match="refused"):
        NodeConnection(f"127.0.0.1:{free_port()}")


def test_a_stranger_that_cannot_prove_itself_is_not_asked_anything() -> None:
    hello_answer = b"\0\0\0\x06\0\0\0\x01\0\xff"
    with somebody_who_says(hello_answer) as address, pytest.raises(NoAnswer):
        NodeConnection(address, bytes(32))
