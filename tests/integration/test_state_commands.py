"""`fyke state check` and `fyke state rebuild` beside a real broker, on stores with the frontier's own rows."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from agents.cli.main import cli
from agents.cli.places import Places, Slot
from streams.frontier.index import FrontierIndexer
from streams.frontier.rows import State, UrlRow, encode_row, url_key
from streams.settings import Frontier
from streams.state.changelog import ChangelogReader, KafkaLog
from streams.state.ledger import Ledger
from streams.state.shelf import Shelf
from streams.state.store import Store
from streams.topics import ROWS
from tests.integration.rowtable import changelog, delete_records, make_again

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

SHARD = 1
URLS = 200


def now() -> int:
    return time.time_ns() // 1_000_000


class Home:
    """A worker's folder with a store, as a worker leaves it."""

    def __init__(self, settings, producer) -> None:
        self.settings = settings
        self.places = Places(settings)
        self._reader = ChangelogReader(changelog(settings), {"bootstrap_servers": settings.kafka.bootstrap})
        self._log = KafkaLog(self._reader, lambda: producer, SHARD)

    def slot(self) -> Slot:
        return self.places.slot("frontier")

    @property
    def path(self) -> Path:
        tables = self.settings.worker.state / "workers" / "frontier-1" / "frontier" / "v1" / "tables"
        return tables / f"{ROWS}-{SHARD}.db"

    async def store(self) -> Store:
        identity = (await self._reader.identities([SHARD]))[SHARD]
        shelf = Shelf(self.path.parent, ROWS, FrontierIndexer(), Frontier(), 1 << 60, now)
        return await shelf.open(identity.cluster, identity.topic, identity.partition, identity.topic_id)

    async def fill(self) -> dict[bytes, bytes]:
        """Write rows as a worker does; what the store holds then."""
        self.slot()
        self.places.leave()
        store = await self.store()
        ledger = Ledger(store, self._log, lambda: 1)
        await ledger.claim()
        await ledger.put([row(number) for number in range(URLS)])
        await ledger.put([(row(0)[0], None)])
        held = dict(store.rows(limit=10 * URLS))
        store.close()
        assert len(held) == URLS - 1
        return held

    async def held(self) -> dict[bytes, bytes]:
        store = await self.store()
        try:
            assert store.derived
            return dict(store.rows(limit=10 * URLS))
        finally:
            store.close()

    async def run(self, command: str, *args: str, code: int = 0) -> str:
        kafka = self.settings.kafka
        environment = {"FYKE_KAFKA_PREFIX": kafka.prefix}
        options = ["--kafka", kafka.bootstrap, "--state", str(self.settings.worker.state)]
        result = await asyncio.to_thread(
            CliRunner(env=environment).invoke, cli, ["state", command, *options, *args], input="y\n"
        )
        assert result.exit_code == code, result.output
        return result.output


def row(number: int) -> tuple[bytes, bytes]:
    state = State.DONE if number % 3 else State.WAITING
    url = UrlRow(1, state, 0, 5, "c", f"http://h/{number}", "h", 1, 0, number)
    return url_key(number.to_bytes(16, "big")), encode_row(url)


@pytest.fixture
def home(settings, producer) -> Home:
    return Home(settings, producer)


async def test_a_sound_store(home):
    await home.fill()
    (found,) = json.loads(await home.run("check", "--json"))
    assert (found["sound"], found["rows"], found["findings"]) == (True, URLS - 1, [])


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_wrong_store_is_made_anew(home, at_once):
    rows = await home.fill()
    store = await home.store()
    store._db.delete(b"r" + row(7)[0])
    store.close()
    assert "WRONG" in await home.run("check", code=5)
    output = await home.run("rebuild", *(["--now"] if at_once else []))
    assert f"up to {URLS + 2} records are read" in output
    assert home.path.with_name(home.path.name + ".aside").exists()
    if at_once:
        assert await home.held() == rows
        assert "sound" in await home.run("check")
    else:
        assert f"the next start reads {URLS + 2} records" in await home.run("check")


async def test_not_while_a_worker_has_it(home):
    await home.fill()
    home.slot()
    try:
        assert "Stop it first" in await home.run("rebuild", code=3)
    finally:
        home.places.leave()
    assert not home.path.with_name(home.path.name + ".aside").exists()
    await home.run("check")


async def test_a_store_that_is_all_there_is_of_its_rows_is_kept(home):
    rows = await home.fill()
    await delete_records(home.settings, 100)
    output = await home.run("check")
    assert "its changelog begins at 100: without this store, rows would be missing" in output
    assert "cannot be rebuilt in full" in await home.run("rebuild", code=3)
    assert await home.held() == rows


async def test_going_on_with_what_a_changelog_has_left(home):
    rows = await home.fill()
    store = await home.store()
    store.begin_at(50)  # as if it had been away
    store.close()
    await delete_records(home.settings, 100)
    assert "STOPS THE WORKER: it contains offset 50, its changelog begins at 100" in await home.run("check", code=5)
    assert "--incomplete" in await home.run("rebuild", code=3)
    await home.run("rebuild", "--incomplete", "--now")
    assert await home.held() == {key: rows[key] for key, _ in map(row, range(99, URLS))}
    assert "sound" in await home.run("check")


async def test_going_on_after_the_topic_was_made_again(home):
    await home.fill()
    await make_again(home.settings)
    assert "deleted and made again" in await home.run("check", code=5)
    assert "--incomplete" in await home.run("rebuild", code=3)
    await home.run("rebuild", "--incomplete", "--now")
    assert await home.held() == {}
    assert "sound" in await home.run("check")


async def test_a_broker_that_is_away_is_said_and_the_rest_checked(home):
    await home.fill()
    output = await home.run("check", "--kafka", "127.0.0.1:1")
    assert "nothing was compared with the changelog" in output
    assert "sound" in output
