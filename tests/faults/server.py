"""The server of deterministic sites, in a process of its own: `python -m tests.faults.server FOLDER`.

FOLDER takes a file DOMAIN.json for each site, also while the server runs, and gets a log DOMAIN.jsonl for each: the
second witness beside what a crawl says of itself, each request by the kernel's clock (`tests.servers.hosts`).
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.faults.site import ROBOTS, Site
from tests.servers.hosts import Entry, Running, Server, listen, running


class Sites:
    """The running server, as the tests see it."""

    def __init__(self, folder: Path, server: Running) -> None:
        self._folder = folder
        self._counted: dict[Site, tuple[int, int]] = {}  # bytes of the log, and lines in them
        self.port = server.port

    def add(self, site: Site) -> None:
        """Serve one more site; domains are used once."""
        path = self._folder / f"{site.domain}.json"
        assert not path.exists(), f"{site.domain} is served already"
        draft = path.with_suffix(".new")
        draft.write_text(json.dumps(asdict(site)))
        (self._folder / f"{site.domain}.jsonl").touch()
        draft.replace(path)

    def entries(self, site: Site) -> list[Entry]:
        """All requests for a site so far; a line that is being written is left for the next time."""
        lines = (self._folder / f"{site.domain}.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        return [Entry(**json.loads(line)) for line in lines if line.endswith("\n")]

    def count(self, site: Site) -> int:
        """How many there are. Only what came since the last time is read: it is asked often."""
        at, lines = self._counted.get(site, (0, 0))
        with (self._folder / f"{site.domain}.jsonl").open("rb") as log:
            log.seek(at)
            new = log.read()
        self._counted[site] = (at + len(new), lines + new.count(b"\n"))
        return self._counted[site][1]


@contextmanager
def sites(folder: Path) -> Iterator[Sites]:
    """A server without sites, until the block ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with running(__name__, folder) as server:
        yield Sites(folder, server)


class SiteServer(Server):
    """Answers for every host of every site."""

    def __init__(self, folder: Path, log: Any) -> None:
        super().__init__({}, log)
        self._folder = folder
        self._places: dict[str, tuple[Site, int]] = {}
        self._logs: dict[str, Any] = {}

    def answer(self, name: str, uri: str) -> tuple[int, str, bytes, float, int]:
        """See `Server`."""
        if name not in self._places and not self._load(name):
            return 404, "", b"", 0.0, 0
        site, number = self._places[name]
        if uri == "/robots.txt":
            return 200, "Content-Type: text/plain\r\n", ROBOTS.encode(), 0.0, 0
        return *site.answer(number, uri), site.pause, 0

    def note(self, entry: Entry) -> None:
        """To the log of the site; what belongs to none goes to the common one."""
        place = self._places.get(entry.host)
        log = self.log if place is None else self._logs[place[0].domain]
        log.write(json.dumps(asdict(entry)) + "\n")

    def _load(self, name: str) -> bool:
        """Look whether the site of a host is here by now."""
        _, _, domain = name.partition(".")
        try:
            site = Site(**json.loads((self._folder / f"{domain}.json").read_text()))
        except FileNotFoundError:
            return False
        self._logs[domain] = (self._folder / f"{domain}.jsonl").open("a", buffering=1, encoding="utf-8")
        self._places.update({host: (site, number) for number, host in enumerate(site.names)})
        return name in self._places


if __name__ == "__main__":
    target = Path(sys.argv[1])
    asyncio.run(listen(target, lambda log: SiteServer(target, log)))
