"""`fyke doctor` on a real broker: each thing that is broken here for it is found, and named with what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from agents.io.admin import Admin
from agents.io.locks import Hold
from agents.io.seeds import Writer
from streams.errors import Exit
from streams.messages import Seed
from streams.settings import Settings, to_environment
from tests.kafka import TestBroker, own_broker
from tests.sites.crawling import environment

pytestmark = pytest.mark.broker


def doctor(settings: Settings, **variables: str) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    """Exit code and findings by check."""
    done = subprocess.run(
        [sys.executable, "-m", "agents.cli.main", "doctor", "--json"], capture_output=True, text=True, check=False,
        cwd=settings.worker.state, env=environment() | to_environment(settings) | variables, timeout=180,
    )  # fmt: skip
    assert done.stdout, done.stderr
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in json.loads(done.stdout):
        found.setdefault(finding["check"], []).append(finding)
    return done.returncode, found


def problems(found: dict[str, list[dict[str, Any]]]) -> dict[str, str]:
    return {check: finding["text"] for check, findings in found.items() for finding in findings if not finding["ok"]}


async def test_a_sound_deployment(broker: TestBroker) -> None:
    async with Admin(broker.bootstrap, broker.settings) as admin:
        await admin.apply_topics()
    code, found = doctor(broker.settings)
    assert (code, problems(found)) == (0, {})
    assert found.keys() >= {"files", "disk", "broker", "topics", "frontier", "fetcher", "parser", "clock"}
    assert found["clock"][0]["text"].endswith("against the broker's")


async def test_no_topics_yet(broker: TestBroker) -> None:
    code, found = doctor(broker.settings)
    assert (code, problems(found)) == (Exit.BROKEN, {"topics": "there are none yet"})


async def test_topics_that_somebody_changed(broker: TestBroker) -> None:
    async with Admin(broker.bootstrap, broker.settings) as admin:
        await admin.apply_topics()
    client: Any = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await client.start()
    records, gone, pages = (broker.prefix + topic for topic in ("records", "failures", "pages"))
    await client.create_partitions({records: NewPartitions(9)})
    await client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, pages, {"retention.ms": "1000"})])
    code, found = doctor(broker.settings)
    assert code == Exit.BROKEN
    texts = [finding["text"] for finding in found["topics"]]
    assert f"{records} has 9 partitions, not 4" in texts
    assert any(text.startswith(f"{pages} differs from the plan:") and "retention.ms=1000" in text for text in texts)
    await client.delete_topics([gone])
    await client.close()
    code, found = doctor(broker.settings)
    assert code == Exit.BROKEN
    assert found["topics"][0]["text"] == f"missing: {gone}"
    assert found["topics"][0]["remedy"] == "Run `fyke topics apply`."


async def test_work_that_nobody_does(broker: TestBroker) -> None:
    async with Admin(broker.bootstrap, broker.settings) as admin:
        await admin.apply_topics()
    async with Writer(broker.bootstrap, broker.settings) as writer:
        await writer.seeds([Seed(url="http://a.test/")])
    code, found = doctor(broker.settings)
    assert (code, problems(found)) == (Exit.BROKEN, {"frontier": "no worker; 1 messages wait"})


async def test_a_clock_that_is_off(broker: TestBroker, tmp_path: Path) -> None:
    """A module that Python loads at its start stands in for a machine whose clock is an hour ahead."""
    async with Admin(broker.bootstrap, broker.settings) as admin:
        await admin.apply_topics()
    (tmp_path / "sitecustomize.py").write_text("import time\nright = time.time\ntime.time = lambda: right() + 3600\n")
    code, found = doctor(broker.settings, PYTHONPATH=f"{tmp_path}:{Path.cwd()}")
    assert code == Exit.BROKEN
    assert problems(found)["clock"].startswith("+3600.")


def test_a_machine_that_is_not_fit(tmp_path: Path) -> None:
    """No broker answers, Java is not one, a worker was left behind; all is told at once."""
    folder = tmp_path / "workers" / "parser-1"
    folder.mkdir(parents=True)
    left = Hold.take(folder / "worker")
    assert left is not None
    left.path.write_text(f"{os.getpid()}\n")
    settings = Settings.model_validate({"worker": {"state": tmp_path}, "broker": {"java": "/bin/false"}})
    code, found = doctor(settings)
    left.drop()
    assert code == Exit.BROKEN
    assert problems(found).keys() == {"java", "workers"}
    assert f"parser-1 (process {os.getpid()}) still runs" in problems(found)["workers"]
    assert "does not run" in found["broker"][0]["text"]
    away = Settings.model_validate({"worker": {"state": tmp_path}, "kafka": {"bootstrap": "127.0.0.1:1"}})
    code, found = doctor(away)
    assert code == Exit.BROKEN
    assert problems(found)["broker"].startswith("no Kafka answers at 127.0.0.1:1")


@pytest.mark.slow
def test_the_embedded_broker_is_neither_needed_nor_started(tmp_path: Path) -> None:
    with own_broker(tmp_path) as own:
        code, found = doctor(own.settings)
        assert found["broker"][0]["text"] == own.bootstrap
        assert (code, problems(found)) == (Exit.BROKEN, {"topics": "there are none yet"})
        own.kill()
        code, found = doctor(own.settings)
        assert (code, problems(found)) == (0, {})
        assert not own.embedded.alive()
