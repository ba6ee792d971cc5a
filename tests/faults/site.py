"""A deterministic web: what a page is and where it leads depends on (seed, host, number) only. Pure.

The pages of a host are a tree of `FANOUT` children; every page is reached from its host's first one. Each page also
links to `ACROSS` others anywhere. Leaves may be missing, moved, or forbidden by robots.txt; so what a crawl must make
of every URL is known without crawling.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

from tests.faults.fleet import host_names

FANOUT = 6
ACROSS = 3
SEEDED = 20
"""One of so many pages is a seed, beside the first page of each host."""

ROBOTS = "User-agent: *\nDisallow: /private/\n"

Fate = Literal["done", "failed", "redirected", "excluded"]


@dataclass(frozen=True, slots=True)
class Site:
    """`hosts` names below `domain`, the same number in each of `shards`, with `pages` URLs each.

    `pause`: seconds an answer takes, so that requests are in flight. `coded`: bodies are compressed.
    """

    domain: str
    seed: int
    hosts: int
    pages: int
    shards: int = 4
    pause: float = 0.0
    coded: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The hosts."""
        return host_names(self.hosts, self.shards, self.domain)

    @property
    def size(self) -> int:
        """All URLs."""
        return self.hosts * self.pages

    def seeds(self) -> list[str]:
        """What is handed to the crawl: in no order that a queue would keep."""
        names = self.names
        chosen = [(host, 0) for host in range(self.hosts)]
        chosen += [
            (host, number)
            for host in range(self.hosts)
            for number in range(1, self.pages)
            if not self._dice("seed", host, number) % SEEDED
        ]
        chosen.sort(key=lambda place: self._dice("order", *place))
        return [self._url(names, host, number) for host, number in chosen]

    def expected(self) -> dict[str, Fate]:
        """What must become of every URL."""
        names = self.names
        return {
            self._url(names, host, number): self.fate(host, number)
            for host in range(self.hosts)
            for number in range(self.pages)
        }

    def fate(self, host: int, number: int) -> Fate:
        """Of a URL; only leaves end otherwise than done."""
        if FANOUT * number + 1 < self.pages or not number:
            return "done"
        dice = self._dice("fate", host, number) % 50
        return "failed" if dice == 0 else "redirected" if dice == 1 else "excluded" if dice == 2 else "done"

    def path(self, host: int, number: int) -> str:
        """Of the URL on its host."""
        return f"/{'private' if self.fate(host, number) == 'excluded' else 'p'}/{number}.html"

    def answer(self, host: int, path: str) -> tuple[int, str, bytes]:
        """Status, header lines and body of the answer to a request."""
        number = number_of(path, self.pages)
        if number is None or self.path(host, number) != path or self.fate(host, number) == "failed":
            return 404, "Content-Type: text/html\r\n", b"<title>none</title>"
        if self.fate(host, number) == "redirected":
            return 302, f"Location: /p/{(number - 1) // FANOUT}.html\r\n", b""
        headers, body = "Content-Type: text/html; charset=utf-8\r\n", self.body(host, number)
        return (
            (200, f"{headers}Content-Encoding: gzip\r\n", gzip.compress(body, 1))
            if self.coded
            else (200, headers, body)
        )

    def body(self, host: int, number: int) -> bytes:
        """A page: some text, and its links."""
        names = self.names_of()
        links = "".join(f'<li><a href="{link}">{link}</a>' for link in self._links(names, host, number))
        words = " ".join(f"w{self._dice('text', host, number + step) % 9973}" for step in range(40))
        text = f"<!doctype html><title>{names[host]} {number}</title><p>{words}</p><ul>{links}</ul>"
        return text.encode()

    def names_of(self) -> tuple[str, ...]:
        """The hosts, found once for a site."""
        if self not in _NAMES:
            _NAMES[self] = self.names
        return _NAMES[self]

    def _links(self, names: tuple[str, ...], host: int, number: int) -> Iterator[str]:
        first = FANOUT * number + 1
        for child in range(first, min(first + FANOUT, self.pages)):
            yield self.path(host, child)
        for step in range(ACROSS):
            dice = self._dice(f"across{step}", host, number)
            yield self._url(names, dice % self.hosts, dice // self.hosts % self.pages)

    def _url(self, names: tuple[str, ...], host: int, number: int) -> str:
        return f"http://{names[host]}{self.path(host, number)}"

    def _dice(self, what: str, host: int, number: int) -> int:
        text = f"{self.seed} {what} {host} {number}".encode()
        return int.from_bytes(blake2b(text, digest_size=6).digest())


_NAMES: dict[Site, tuple[str, ...]] = {}


def number_of(path: str, pages: int) -> int | None:
    """The number in a path of a page; None for any other path."""
    _, _, name = path.rpartition("/")
    stem, dot, end = name.partition(".")
    if not dot or end != "html" or not stem.isdigit() or str(int(stem)) != stem or int(stem) >= pages:
        return None
    return int(stem)
