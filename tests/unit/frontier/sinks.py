"""A shard whose words to the sinks are kept."""

from __future__ import annotations

from typing import Any

from streams import messages as m
from streams.definitions import CrawlDefinition
from streams.frontier.rows import URL_KEY
from tests.unit.frontier.rig import Rig, key


def forget(name: str = "c", **what: str) -> m.Command:
    fingerprint = key(what["url"], name) if "url" in what else bytes(16)
    return m.Command(action="forget", crawl=name, fingerprint=fingerprint, **what)  # type: ignore[arg-type] # names


class Sinks(Rig):
    """Keeps what the sinks are told."""

    def __init__(self, *crawls: CrawlDefinition, **config: Any) -> None:
        self.forgotten: list[m.Forgotten] = []
        super().__init__(*crawls, **config)

    def check(self, turn: Any) -> None:
        self.forgotten += turn.forgotten
        super().check(turn)

    @property
    def told(self) -> list[str]:
        return sorted(word.url for word in self.forgotten)

    def known(self) -> int:
        return sum(1 for row in self.store.rows if row[:1] == URL_KEY)
