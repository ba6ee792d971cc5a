"""What the tests of a running service share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from agents.delivery.producer import Producer
from agents.io.admin import Admin
from streams.settings import Settings
from tests.integration.service import Client, Site, connected, service_settings, serving
from tests.kafka import TestBroker


@pytest.fixture
def web() -> Iterator[Site]:
    """A site that keeps its requests."""
    with serving() as site:
        yield site


@pytest.fixture
def service(broker: TestBroker) -> Settings:
    """Settings of workers that serve it."""
    return service_settings(broker.settings.worker.state, broker.bootstrap, broker.prefix)


@pytest.fixture
async def client(service: Settings) -> AsyncIterator[Client]:
    """A plain client; the topics are there."""
    async with connected(service) as client:
        yield client


@pytest.fixture
async def settings(broker: TestBroker) -> Settings:
    """Of the broker; the topics are there."""
    async with Admin(broker.bootstrap, broker.settings) as admin:
        await admin.apply_topics()
    return broker.settings


@pytest.fixture
async def producer(settings: Settings) -> AsyncIterator[Producer]:
    """What writes changelogs."""
    failures: list[Exception] = []
    producer = Producer(settings.kafka.bootstrap, settings, "test", failures.append)
    await producer.start()
    yield producer
    await producer.stop()
    assert failures == []
