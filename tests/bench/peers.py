"""Pages per CPU-second beside Scrapy: the same real site, the same core, in turns.

    python -m tests.bench.peers [--runs 3] [--site openjdk-17-doc] [--at-least 6]

nginx serves the site on core 1; each crawler, with all its processes, has core 0. Pages are checked against the
independent walk: a run that misses one, or has one twice, does not count and fails the benchmark. The figure is HTML
pages by CPU-seconds of all Python processes over their whole life; the broker's CPU is shown beside it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.bench.accounting import Usage, measure
from tests.sites import asserts, debian, nginx, walk
from tests.sites.crawling import FYKE
from tests.suites import ROOT

SITES = {site.package: site for site in (debian.OPENJDK, debian.POSTGRESQL, debian.BOOST)}
TIMEOUT = 1200.0


@dataclass(frozen=True, slots=True)
class Peer:
    """A crawler: how it is started on a seed in a folder, and which pages it has written there."""

    name: str
    command: Callable[[str, Path], list[str]]
    pages: Callable[[Path], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Run:
    """One crawl."""

    peer: str
    pages: int
    faults: str
    usage: Usage

    @property
    def rate(self) -> float:
        """Pages per CPU-second, Python processes only."""
        return self.pages / self.usage.cpu

    @property
    def rate_with_broker(self) -> float:
        """Pages per CPU-second, the broker counted."""
        return self.pages / (self.usage.cpu + self.usage.broker)


def _fyke(seed: str, folder: Path) -> list[str]:
    options = ["--allow-private", "--out", str(folder / "out"), "--state", str(folder / "state")]
    return [str(FYKE), "crawl", seed, *options]


def _scrapy(seed: str, folder: Path) -> list[str]:
    return [sys.executable, str(ROOT / "tests/bench/scrapy_peer.py"), seed, str(folder / "out.jsonl")]


def _scrapy_pages(folder: Path) -> list[str]:
    lines = map(json.loads, (folder / "out.jsonl").read_text(encoding="utf-8").splitlines())
    return [line["url"] for line in lines if "links" in line]


PEERS = (
    Peer("scrapy", _scrapy, _scrapy_pages),
    Peer("fyke", _fyke, lambda folder: asserts.read(folder / "out").pages),
)


def run(peer: Peer, seed: str, expected: set[str]) -> Run:
    """Crawl once in a fresh folder, which is left only when something was wrong."""
    folder = Path(tempfile.mkdtemp(prefix=f"bench-{peer.name}-"))
    usage = measure(peer.command(seed, folder), folder / "log.txt", core=0, timeout=TIMEOUT)
    seen = Counter(peer.pages(folder))
    faults = {
        "exit code": usage.code,
        "missing": len(expected - seen.keys()),
        "unexpected": len(seen.keys() - expected),
        "twice": sum(seen.values()) - len(seen),
    }
    wrong = ", ".join(f"{count} {what}" for what, count in faults.items() if count)
    if wrong:
        wrong += f" ({folder})"
    else:
        shutil.rmtree(folder)
    return Run(peer.name, len(seen), wrong, usage)


def line(one: Run) -> str:
    """One run, for people."""
    usage = one.usage
    return (
        f"{one.peer:8} {one.pages:6} pages  {usage.cpu:7.2f} s CPU  + broker {usage.broker:5.2f} s  {usage.wall:6.1f} s"
        f"  {one.rate:7.0f} pages/CPU-s  ({one.rate_with_broker:.0f} with broker)  {usage.rss >> 20} MiB  {one.faults}"
    )


def main() -> int:
    """Print each run and the ratio; 1 if a run was not exact or the ratio is below what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="of each crawler")
    parser.add_argument("--site", choices=SITES, default=debian.OPENJDK.package)
    parser.add_argument("--at-least", type=float, default=0.0, help="the ratio below which the exit code is 1")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is stopped
    site = SITES[arguments.site]
    paths = walk.expected(site).html
    runs: list[Run] = []
    with (
        tempfile.TemporaryDirectory() as scratch,
        nginx.serve({"site": debian.root_of(site)}, Path(scratch), core=1) as web,
    ):
        for _ in range(arguments.runs):
            for peer in PEERS:
                runs.append(run(peer, web.origin + site.start, {web.origin + path for path in paths}))
                print(line(runs[-1]), flush=True)
    medians = {peer.name: statistics.median(one.rate for one in runs if one.peer == peer.name) for peer in PEERS}
    ratio = medians["fyke"] / medians["scrapy"]
    print(f"fyke / scrapy: {ratio:.1f} (medians of {arguments.runs} runs, {site.package}, {len(paths)} pages)")
    return 1 if ratio < arguments.at_least or any(one.faults for one in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
