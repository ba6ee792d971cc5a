"""Kafka's jars, downloaded for real from a mirror on loopback that serves what the cache holds."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from agents.io import java, kraft
from streams.errors import EnvironmentFault
from streams.settings import cache_home

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

Change = Callable[[str, bytes], bytes]


@pytest.fixture(scope="module")
def jars(session_broker: str) -> Path:
    """The complete folder that the session's broker runs on."""
    return cache_home() / f"kafka-{java.KAFKA}"


@contextmanager
def _mirror(jars: Path, change: Change) -> Iterator[tuple[str, Counter[str]]]:
    """A Maven repository on loopback; its address and how often each jar was asked for."""
    asked: Counter[str] = Counter()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2]
            if not (jars / name).is_file():
                self.send_error(404)
                return
            asked[name] += 1
            whole = (jars / name).read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(whole)))
            self.end_headers()
            self.wfile.write(change(name, whole))

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the parent's name)
            pass

    with ThreadingHTTPServer((kraft.HOST, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://{kraft.HOST}:{server.server_port}/maven", asked
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def use_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make Maven's settings of this user name a mirror, with no Maven on PATH."""

    def use(url: str) -> None:
        settings = tmp_path / "home" / ".m2" / "settings.xml"
        settings.parent.mkdir(parents=True)
        settings.write_text(
            '<settings xmlns="urn:settings"><mirrors><mirror><id>here</id>'
            f"<mirrorOf>*</mirrorOf><url>{url}</url></mirror></mirrors></settings>"
        )

    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", kraft.HOST)
    return use


def _unchanged(_name: str, whole: bytes) -> bytes:
    return whole


def test_two_at_once_download_once_and_a_complete_folder_is_kept(
    jars: Path, tmp_path: Path, use_mirror: Callable[[str], None]
) -> None:
    said: list[str] = []
    with _mirror(jars, _unchanged) as (url, asked):
        use_mirror(url)
        with ThreadPoolExecutor(2) as pool:
            found = [pool.submit(java.bring_artefacts, tmp_path / "cache", said.append) for _ in range(2)]
            (home,) = {each.result() for each in found}
        assert java.bring_artefacts(tmp_path / "cache", said.append) == home
        assert asked == Counter({pin.filename: 1 for pin in java.pins()})
        assert sum(text.startswith("Downloading Apache Kafka") for text in said) == 1

        (home / java.pins()[0].filename).write_bytes(b"")  # what a power cut leaves
        java.bring_artefacts(tmp_path / "cache")
        assert asked[java.pins()[0].filename] == 2
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {home.name, f"{home.name}.lock"}


def test_a_jar_that_breaks_off_is_asked_for_again(
    jars: Path, tmp_path: Path, use_mirror: Callable[[str], None]
) -> None:
    broken = {java.pins()[7].filename}

    def once(name: str, whole: bytes) -> bytes:
        if name in broken:
            broken.remove(name)
            return whole[: len(whole) // 2]
        return whole

    with _mirror(jars, once) as (url, asked):
        use_mirror(url)
        java.bring_artefacts(tmp_path / "cache")
    assert asked[java.pins()[7].filename] == 2


def test_a_jar_that_is_not_the_released_one_is_refused(
    jars: Path, tmp_path: Path, use_mirror: Callable[[str], None]
) -> None:
    bad = java.pins()[3].filename

    def forged(name: str, whole: bytes) -> bytes:
        return whole[:-1] + b"!" if name == bad else whole

    with _mirror(jars, forged) as (url, _):
        use_mirror(url)
        with pytest.raises(EnvironmentFault, match=rf"{bad} differs from the release .*; Maven is not installed"):
            java.bring_artefacts(tmp_path / "cache")
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_without_a_network_the_fault_names_every_way(tmp_path: Path, use_mirror: Callable[[str], None]) -> None:
    use_mirror(f"http://{kraft.HOST}:{kraft.free_port()}")
    with pytest.raises(EnvironmentFault, match=r"jgo: .*refused.*; Maven is not installed") as caught:
        java.bring_artefacts(tmp_path / "cache")
    assert "--kafka HOST:PORT" in caught.value.remedy
