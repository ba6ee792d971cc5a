from __future__ import annotations

import multiprocessing
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from agents.cli.places import Places, occupied
from streams.errors import EnvironmentFault, UsageError
from streams.settings import Settings


def settings(state: Path, **fetch) -> Settings:
    return Settings.model_validate({"worker": {"state": state}, "fetch": fetch})


def _run_beside(state: Path, entered: Event) -> None:
    places = Places(settings(state, allow_private=True))
    places.enter()
    places.slot("fetcher")
    entered.set()
    time.sleep(60)


@pytest.fixture
def neighbour(tmp_path):
    """Another process with one fetcher on the state folder, and the way to end it."""
    context = multiprocessing.get_context("spawn")
    entered = context.Event()
    process = context.Process(target=_run_beside, args=(tmp_path, entered))
    process.start()
    assert entered.wait(30)
    yield process
    process.kill()
    process.join(30)


def test_two_crawls_have_places_of_their_own_and_must_agree(tmp_path, neighbour):
    places = Places(settings(tmp_path, allow_private=True))
    places.enter()
    assert [places.slot("fetcher").name, places.slot("fetcher").name] == ["fetcher-2", "fetcher-3"]
    assert places.slot("parser").name == "parser-1"
    places.leave()
    with pytest.raises(UsageError, match="FYKE_FETCH_ALLOW_PRIVATE=True, this one False"):
        Places(settings(tmp_path)).enter()
    with pytest.raises(UsageError, match="FYKE_FETCH_CONNECT_TO"):
        Places(settings(tmp_path, allow_private=True, connect_to=["a:1:b:2"])).enter()
    with pytest.raises(EnvironmentFault, match="a crawl or worker runs"):
        Places(settings(tmp_path)).check_nobody()

    neighbour.kill()
    neighbour.join(30)
    other = Places(settings(tmp_path))
    other.enter()
    assert other.slot("fetcher").name == "fetcher-1"
    other.leave()
    other.check_nobody()


def test_workers_on_another_broker_need_not_agree(tmp_path, neighbour):
    elsewhere = settings(tmp_path).model_copy(
        update={"kafka": settings(tmp_path).kafka.model_copy(update={"bootstrap": "kafka:9092"})}
    )
    places = Places(elsewhere)
    places.enter()
    places.leave()


def test_a_place_whose_last_worker_still_finishes_is_not_given_away(tmp_path):
    places = Places(settings(tmp_path))
    slot = places.slot("frontier")
    with occupied(slot.folder):
        places.leave()
        assert places.slot("frontier").number == 2
        with pytest.raises(EnvironmentFault, match="another worker uses"), occupied(slot.folder):
            pass
    assert places.slot("frontier").number == 1


def test_a_state_folder_that_cannot_be_used_is_one_clear_message(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault, match="state folder"):
        Places(settings(tmp_path / "file")).enter()
