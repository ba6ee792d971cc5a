from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from agents.cli import supervisor as module
from agents.cli.places import Places
from agents.cli.supervisor import Supervisor
from streams.errors import EnvironmentFault
from streams.settings import Settings

WORKER = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: (print("stopped"), sys.exit(0)))
print(os.environ["FYKE_WORKER_NAME"], "told", sys.stdin.readline().strip(), flush=True)
sys.stdin.read()
print("orphaned", flush=True)
"""
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"


@pytest.fixture
def places(tmp_path):
    places = Places(Settings.model_validate({"worker": {"state": tmp_path, "name": "w"}}))
    yield places
    places.leave()


@pytest.fixture
def settings(tmp_path):
    return Settings.model_validate({"worker": {"state": tmp_path, "name": "w"}})


def running(code: str, said: list[str]) -> Supervisor:
    return Supervisor(said.append, lambda _stage: (sys.executable, "-c", code))


async def until(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        await asyncio.sleep(0.02)


async def test_a_worker_is_told_the_broker_and_stops_when_asked(places, settings):
    supervisor, slot = running(WORKER, []), places.slot("fetcher")
    await supervisor.start(slot, settings)
    await asyncio.sleep(0.1)
    assert "told" not in slot.log.read_text()
    supervisor.connect("kafka:9")
    await until(lambda: "w told kafka:9" in slot.log.read_text())
    assert await supervisor.stop(10) == []
    assert slot.log.read_text().splitlines()[-1] == "stopped"
    assert supervisor.pids() == {}


async def test_a_killed_worker_is_started_again_and_told_again(places, settings, monkeypatch):
    monkeypatch.setattr(module, "_BACKOFF", 0.05)
    said: list[str] = []
    supervisor, slot = running(WORKER, said), places.slot("fetcher")
    await supervisor.start(slot, settings)
    supervisor.connect("kafka:9")
    await until(lambda: slot.log.exists() and slot.log.read_text().count("told") == 1)
    first = supervisor.pids()["fetcher-1"]
    os.kill(first, signal.SIGKILL)
    await until(lambda: slot.log.read_text().count("told kafka:9") == 2)
    assert supervisor.pids()["fetcher-1"] != first
    assert "fetcher-1 was ended by SIGKILL" in said[0]
    assert supervisor.restarts == 1
    await supervisor.stop(10)
    assert not supervisor.failed.done()


async def test_a_worker_that_keeps_crashing_is_given_up_with_its_last_words(places, settings, monkeypatch):
    monkeypatch.setattr(module, "_BACKOFF", 0.01)
    supervisor = running("import sys; print('old log'); sys.exit('no luck')", [])
    await supervisor.start(places.slot("parser"), settings)
    fault = await asyncio.wait_for(supervisor.failed, 30)
    assert isinstance(fault, EnvironmentFault)
    assert "parser-1 ended with status 1 5 times in a row" in fault.problem
    assert "no luck" in fault.problem
    await supervisor.stop(1)


async def test_who_ends_while_the_broker_is_away_is_not_to_blame_and_waits_for_it(places, settings, monkeypatch):
    """A worker that needs the broker may notice its death first."""
    monkeypatch.setattr(module, "_BACKOFF", 0.01)
    needs = "import sys; print('told' if sys.stdin.readline() else 'left', flush=True); sys.exit(3)"
    supervisor, slot = running(needs, []), places.slot("parser")
    await supervisor.start(slot, settings)
    supervisor.connect("kafka:9")
    await until(lambda: "told" in slot.log.read_text())
    supervisor.broker_away()
    await until(lambda: supervisor.restarts == 1)
    await asyncio.sleep(0.5)
    assert supervisor.restarts == 1
    assert slot.log.read_text().count("told") == 1
    supervisor.broker_back()
    await until(lambda: slot.log.read_text().count("told") == 2)
    fault = await asyncio.wait_for(supervisor.failed, 10)
    assert "parser-1 cannot run" in fault.problem
    await supervisor.stop(1)


async def test_a_fault_of_the_environment_is_not_tried_again(places, settings):
    supervisor = running("import sys; print('disk full'); sys.exit(3)", [])
    await supervisor.start(places.slot("exporter"), settings)
    fault = await asyncio.wait_for(supervisor.failed, 30)
    assert "exporter-1 cannot run" in fault.problem
    assert "disk full" in fault.problem
    assert supervisor.restarts == 0
    await supervisor.stop(1)


async def test_a_worker_that_does_not_stop_is_killed_after_its_grace(places, settings):
    supervisor, slot = running(DEAF, []), places.slot("fetcher")
    await supervisor.start(slot, settings)
    await until(lambda: slot.log.exists() and "deaf" in slot.log.read_text())
    began = time.monotonic()
    assert await supervisor.stop(0.3) == ["fetcher-1"]
    assert time.monotonic() - began < 5


async def test_a_second_thought_kills_at_once(places, settings):
    supervisor, slot = running(DEAF, []), places.slot("fetcher")
    await supervisor.start(slot, settings)
    await until(lambda: slot.log.exists() and "deaf" in slot.log.read_text())
    stopping = asyncio.create_task(supervisor.stop(30))
    await asyncio.sleep(0.05)
    supervisor.kill()
    await asyncio.wait_for(stopping, 5)
    assert supervisor.pids() == {}


def test_workers_end_when_the_command_is_killed(tmp_path):
    script = f"""
import asyncio, os, signal, sys
from pathlib import Path
sys.path.insert(0, {str(Path.cwd())!r})
from agents.cli.places import Places
from agents.cli.supervisor import Supervisor
from streams.settings import Settings
settings = Settings.model_validate({{"worker": {{"state": {str(tmp_path)!r}, "name": "w"}}}})
async def main():
    supervisor = Supervisor(print, lambda stage: (sys.executable, "-c", {WORKER!r}))
    await supervisor.start(Places(settings).slot("fetcher"), settings)
    supervisor.connect("kafka:9")
    while "told" not in (Path({str(tmp_path)!r}) / "logs/fetcher-1.log").read_text():
        await asyncio.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    import subprocess

    assert subprocess.run([sys.executable, "-c", script], timeout=30, check=False).returncode == -signal.SIGKILL
    log = tmp_path / "logs/fetcher-1.log"
    deadline = time.monotonic() + 60
    while "orphaned" not in log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
