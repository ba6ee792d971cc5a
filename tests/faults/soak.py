"""An hour at a held rate: no process grows, none opens more and more files, nothing is lost.

make faults LINE=soak                      the hour
make faults LINE=soak ARGS='--minutes 3'   a trial, which tells whether it would run, not whether anything grows
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.faults.bench import Bench
from tests.faults.kills import seconds_of
from tests.faults.lines import Dose, Line, Verdict
from tests.faults.service import Crawling
from tests.faults.trend import Point, Trend, trend
from tests.faults.workers import Process

HOSTS = 32
DELAY = 0.33
"""Seconds between two pages of a host, which hold the rate at some 90 a second: with what a request takes to travel."""

LEAST = 300_000 / 3600
"""Pages a second, on the average."""

STEADY = 0.9
"""Of the median of all minutes: the pages of the slowest tenth."""

GROWTH = 4.0
"""MiB of resident memory an hour, that no process may exceed: the upper end of the interval."""

FILES = 10
"""Descriptors by which the last quarter of what is judged may exceed the first: stores open and close tables."""

SAMPLE = 5.0
JUDGED = 0.75
"""Of the time: the first quarter is for caches to fill."""

_HOUR = 3600.0
_MIB = 1 << 20


@dataclass(slots=True)
class Series:
    """What one process took: resident MiB and descriptors, by time in hours."""

    memory: list[Point] = field(default_factory=list)
    files: list[Point] = field(default_factory=list)

    def sample(self, process: Process, at: float) -> None:
        """Look at a process."""
        self.memory.append((at, process.rss() / _MIB))
        self.files.append((at, process.descriptors()))

    def judged(self) -> Series:
        """Without the beginning."""
        begin = len(self.memory) - round(JUDGED * len(self.memory))
        return Series(self.memory[begin:], self.files[begin:])


def soak(bench: Bench, dose: Dose) -> Verdict:
    """A crawl that lasts for the dose's time, looked at every few seconds."""
    with (
        bench.own_service() as service,
        bench.crawl(service, size=dose.size, hosts=HOSTS, delay=DELAY) as crawl,
    ):
        crawl.reach(HOSTS / crawl.site.size)
        series, pages = watched(crawl, dose.seconds)
        crawl.finish(seconds_of(crawl))
        verdict = crawl.verdict()
    verdict.add(steady(pages, dose.seconds))
    for name, found in series.items():
        verdict.add(flat(name, found.judged()))
    deaths = verdict.figures["workers that ended by themselves"]
    verdict.require(deaths == 0, f"{deaths} workers ended by themselves")
    return verdict


def watched(crawl: Crawling, seconds: float) -> tuple[dict[str, Series], list[Point]]:
    """Each process, and the pages fetched, by the time since now."""
    series = {name: Series() for name in crawl.workers.all}
    pages: list[Point] = []
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds and crawl.fetched() < crawl.site.size:
        for name, process in crawl.workers.all.items():
            series[name].sample(process, passed / _HOUR)
        pages.append((passed, crawl.fetched()))
        crawl.workers.rest(SAMPLE)
    pages.append((time.monotonic() - began, crawl.fetched()))
    return series, pages


def steady(pages: Sequence[Point], seconds: float) -> Verdict:
    """Whether so many pages were fetched in that time, evenly."""
    verdict = Verdict()
    (begin, first), (end, last) = pages[0], pages[-1]
    minutes = per_minute(pages)
    slow, usual = statistics.quantiles(minutes, n=10)[0], statistics.median(minutes)
    verdict.figures = {
        "pages while it was watched": round(last - first), "minutes": round((end - begin) / 60, 1),
        "pages a minute": round(usual), "in the slowest tenth of minutes": round(slow),
    }  # fmt: skip
    verdict.require(end >= seconds, f"the crawl was over after {end:.0f} s, not {seconds:.0f}: the site is too small")
    verdict.require(last - first >= LEAST * (end - begin), f"{last - first:.0f} pages in {end - begin:.0f} s")
    verdict.require(slow >= STEADY * usual, f"{slow:.0f} pages a minute in the slowest tenth, {usual:.0f} as a rule")
    return verdict


def per_minute(pages: Sequence[Point]) -> list[float]:
    """Pages in each minute, of which there must be two; the last is left out unless it is whole."""
    found, (since, count) = [], pages[0]
    for at, number in pages:
        if at - since >= 60.0:
            found.append((number - count) / (at - since) * 60)
            since, count = at, number
    return found


def flat(name: str, series: Series) -> Verdict:
    """What one process took does not grow."""
    verdict = Verdict()
    memory = trend(series.memory)
    before, after = ends(series.files)
    verdict.figures[f"{name} RSS"] = (
        f"{memory} MiB/h at {series.memory[-1][1]:.0f} MiB, descriptors {before:.0f} then {after:.0f}"
    )
    verdict.problems += grown(name, memory)
    verdict.require(after <= before + FILES, f"{name} has {after:.0f} descriptors open, it had {before:.0f}")
    return verdict


def grown(name: str, memory: Trend) -> list[str]:
    """Nothing if the whole interval is within what is allowed."""
    if memory.most <= GROWTH:
        return []
    if memory.least > GROWTH:
        return [f"{name} grows by {memory} MiB/h"]
    return [f"{name}: {memory} MiB/h does not show that it grows by {GROWTH:g} at most"]


def ends(points: Sequence[Point]) -> tuple[float, float]:
    """The medians of the first and of the last quarter."""
    quarter = max(1, len(points) // 4)
    first, last = points[:quarter], points[-quarter:]
    return statistics.median(value for _, value in first), statistics.median(value for _, value in last)


LINES = (
    Line(
        "soak", "none: an hour at a held rate",
        "≥ 300,000 pages; lost 0; RSS slope over the last 45 min ≤ 4 MiB/h per process, with its 95 % interval; "
        "descriptors flat",
        soak,
        Dose("60 min at some 90 pages a second; 350,000 URLs", seconds=3600, size=350_000),
        None,
    ),
)  # fmt: skip
