"""A real broker for tests marked `broker`: one embedded Kafka for the session, its own topics for each test.

Load it as a plugin of the test package (`pytest_plugins` in tests/conftest.py).
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agents.io.broker import EmbeddedBroker
from streams.settings import Settings

_serial = iter(range(1_000_000))


@dataclass(frozen=True, slots=True)
class TestBroker:
    """The session's broker as one test sees it: an address, and settings with a prefix that no other test has."""

    __test__ = False

    bootstrap: str
    settings: Settings

    @property
    def prefix(self) -> str:
        """Goes before every topic and group of the test."""
        return self.settings.kafka.prefix


@dataclass(frozen=True, slots=True)
class OwnBroker:
    """A broker that a test may kill, stop, freeze and start again on the same ports."""

    bootstrap: str
    settings: Settings
    embedded: EmbeddedBroker

    @property
    def pid(self) -> int:
        """The JVM's process id now."""
        return self.embedded.status().pid

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        os.kill(self.pid, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while self.embedded.alive():
            assert time.monotonic() < deadline, "the broker does not die"
            time.sleep(0.01)

    def stop(self) -> None:
        """SIGTERM, and wait until it is gone."""
        self.embedded.stop(force=True)

    def start(self) -> None:
        """Start it again on the same ports with the same data."""
        assert self.embedded.restart() == self.bootstrap


def settings_for(state: Path, /, bootstrap: str = "", prefix: str = "fyke.", **groups: Any) -> Settings:
    """Settings of a test: its own state folder, the shared cache; `groups` as in frontier={"turn": 10}."""
    kafka = {"bootstrap": bootstrap, "prefix": prefix, **groups.pop("kafka", {})}
    worker = {"state": state, **groups.pop("worker", {})}
    return Settings.model_validate({"kafka": kafka, "worker": worker, **groups})


@contextmanager
def own_broker(state: Path, /, **groups: Any) -> Iterator[OwnBroker]:
    """Start a broker of one's own in `state`, stopped at the end of the block. Takes about two seconds."""
    settings = settings_for(state, **groups)
    embedded = EmbeddedBroker(settings)
    try:
        bootstrap = embedded.ensure()
        yield OwnBroker(bootstrap, settings, embedded)
    finally:
        embedded.stop(force=True)


@pytest.fixture(scope="session")
def session_state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state folder of the session's broker."""
    return tmp_path_factory.mktemp("kafka")


@pytest.fixture(scope="session")
def session_broker(session_state: Path) -> Iterator[str]:
    """The bootstrap address of the session's broker, started when the first test asks for it."""
    with own_broker(session_state) as broker:
        yield broker.bootstrap


@pytest.fixture
def broker(session_broker: str, request: pytest.FixtureRequest, tmp_path: Path) -> TestBroker:
    """The session's broker under a prefix of this test's own, such as `test-retry-3.`."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name).strip("-")[:24]
    return TestBroker(session_broker, settings_for(tmp_path, session_broker, f"{name}-{next(_serial)}."))
