from __future__ import annotations

import gc
import socket

import pytest
from aiokafka.errors import KafkaError

from streams.state.changelog import ChangelogReader


@pytest.fixture
def reader():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield ChangelogReader("topic", {"bootstrap_servers": f"127.0.0.1:{unused.getsockname()[1]}"})


async def test_a_broker_that_is_away_is_an_error_that_recovery_waits_for(reader):
    with pytest.raises(KafkaError) as caught:
        await reader.ends([0])
    assert caught.value.retriable
    with pytest.raises(KafkaError) as caught:
        await reader.identities([0])
    assert caught.value.retriable
    gc.collect()  # a client left open would warn, and a warning fails


async def test_nothing_to_read_asks_nobody(reader):
    assert [stretch async for stretch in reader.read({0: 5, 1: 7}, {0: 5, 1: 6})] == []
