from __future__ import annotations

import fcntl
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from agents.io import kraft
from agents.io.java import Runtime
from streams.errors import EnvironmentFault
from streams.settings import Settings


@pytest.fixture
def layout(tmp_path: Path) -> kraft.Layout:
    return kraft.Layout(tmp_path)


def test_a_free_port_is_no_source_port_of_a_client() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = {kraft.free_port() for _ in range(20)}
    assert len(ports) > 10
    assert all(port < lowest and kraft.port_free(port) for port in ports)


def test_a_port_somebody_listens_on_is_not_free() -> None:
    with socket.create_server((kraft.HOST, 0)) as server:
        port = server.getsockname()[1]
        assert not kraft.port_free(port)
        assert kraft.listening(port)
    assert not kraft.listening(port)


def test_a_node_keeps_its_identity_and_its_data(layout: kraft.Layout) -> None:
    kraft.write_files(layout, 20001, 20002, Settings())
    identity = (layout.data / "meta.properties").read_text()
    (layout.scratch / "libzstd.so").touch()
    kraft.write_files(layout, 20003, 20004, Settings())
    assert (layout.data / "meta.properties").read_text() == identity
    assert not list(layout.scratch.iterdir())
    properties = dict(line.split("=", 1) for line in layout.properties.read_text().splitlines())
    assert properties["listeners"] == "PLAINTEXT://127.0.0.1:20003,CONTROLLER://127.0.0.1:20004"
    assert properties["auto.create.topics.enable"] == "false"
    assert int(properties["message.max.bytes"]) > Settings().kafka.max_message
    assert int(properties["socket.request.max.bytes"]) >= 4 * Settings().kafka.max_message


def test_data_without_its_identity_is_damage(layout: kraft.Layout) -> None:
    (layout.data / "fyke.inbox-0").mkdir(parents=True)
    with pytest.raises(EnvironmentFault, match=r"damaged: meta\.properties is missing"):
        kraft.write_files(layout, 20001, 20002, Settings())


def test_a_long_log_is_set_aside(layout: kraft.Layout) -> None:
    layout.log.write_bytes(b"x" * (5 << 20))
    kraft.write_files(layout, 20001, 20002, Settings())
    assert not layout.log.exists()
    assert (layout.root / "broker.log.1").stat().st_size == 5 << 20


def test_the_heap_is_never_too_small_to_start(layout: kraft.Layout) -> None:
    command = kraft.command(Runtime(Path("/j/java"), Path("/c/jars")), layout, heap=1)
    assert command[0] == "/j/java"
    assert "-Xmx64m" in command
    assert "/c/jars/*" in command


def test_data_that_another_process_has_locked_is_refused(layout: kraft.Layout) -> None:
    kraft.refuse_second(layout)
    layout.data.mkdir()
    lock = layout.data / ".lock"
    lock.touch()
    kraft.refuse_second(layout)
    code = (
        f"import fcntl, sys; f = open({str(lock)!r}, 'r+'); fcntl.lockf(f, {fcntl.LOCK_EX}); print(flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(EnvironmentFault, match=rf"another Kafka \(process {holder.pid}\)"):
            kraft.refuse_second(layout)
        holder.kill()
    kraft.refuse_second(layout)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("java.io.IOException: No space left on device", "the disk of .* is full"),
        ("java.net.BindException: Address already in use", "a port .* is taken"),
        ("Terminating due to java.lang.OutOfMemoryError: Java heap space", "ran out of memory"),
        ("java.nio.file.AccessDeniedException: (Permission denied)", "may not write"),
        ("[main] ERROR kafka.Kafka$ - Exiting: Stored node id 7", r"ended:\n    \[main\] ERROR .* node id 7"),
        ("[main] WARN all is well", r"does not say why \(killed from outside\?\)"),
    ],
)
def test_the_log_says_why_it_died(layout: kraft.Layout, line: str, problem: str) -> None:
    layout.log.write_text(f"an ERROR of an earlier life: No space left on device\n{line}\n")
    since = layout.log.read_text().index("\n") + 1
    with pytest.raises(EnvironmentFault, match=problem):
        raise kraft.explain_death(layout, since)


def test_without_a_log_it_is_said_that_there_is_no_reason(layout: kraft.Layout) -> None:
    assert "does not say why" in kraft.explain_death(layout, 0).problem
