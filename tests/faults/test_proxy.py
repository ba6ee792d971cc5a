"""The proxy does what its states say, or the lines that use it would show nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from agents.io.kraft import free_port
from tests.faults.proxy import Proxy, proxy


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that says what it hears, in upper case; its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer(client: socket.socket) -> None:
            with client:
                while piece := client.recv(100):
                    client.sendall(piece.upper())

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(client,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def way(echo: int) -> Iterator[tuple[Proxy, int]]:
    port = free_port()
    with proxy({port: echo}) as made:
        yield made, port


def connect(port: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=5)
    client.settimeout(0.5)
    return client


def test_it_passes_on(way: tuple[Proxy, int]) -> None:
    with connect(way[1]) as client:
        client.sendall(b"hello")
        assert client.recv(100) == b"HELLO"


def test_a_cut_breaks_and_refuses_until_it_is_mended(way: tuple[Proxy, int]) -> None:
    made, port = way
    with connect(port) as client:
        client.sendall(b"a")
        assert client.recv(100) == b"A"
        made.turn("cut")
        with suppress(ConnectionResetError):
            assert client.recv(100) == b""
    with pytest.raises(ConnectionRefusedError):
        connect(port)
    made.turn("open")
    with connect(port) as client:
        client.sendall(b"b")
        assert client.recv(100) == b"B"


@pytest.mark.parametrize("state", ["hole", "deaf"])
def test_what_is_held_back_arrives_late(way: tuple[Proxy, int], state: str) -> None:
    made, port = way
    with connect(port) as client:
        client.sendall(b"a")
        assert client.recv(100) == b"A"
        made.turn(state)  # type: ignore[arg-type]  # one of its states
        client.sendall(b"b")
        with pytest.raises(TimeoutError):
            client.recv(100)
        made.turn("open")
        assert client.recv(100) == b"B"
