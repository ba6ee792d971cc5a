"""Pages that kill the parser each time, bodies that kill the fetcher's decoder: processes die, the crawl goes on."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from tests.faults import checker
from tests.faults.bench import Bench
from tests.faults.checker import Fault
from tests.faults.doomed import kills_decoder, kills_parser
from tests.faults.facts import Facts
from tests.faults.lines import Dose, Line, Verdict
from tests.faults.service import REBALANCE, SESSION, Crawling
from tests.faults.site import Fate, number_of

ON_AGAIN = 30.0
"""Seconds from the last death of a process until the page it died of has failed, so that its partition goes on."""


def doomed(stage: str) -> Sequence[str]:
    """The command of a worker with the bugs."""
    return sys.executable, "-m", "tests.faults.doomed", "worker", stage


def poison(bench: Bench, dose: Dose) -> Verdict:
    """Each poisonous URL must end as a failure of its class; all others as ever."""
    with (
        bench.own_service(command=doomed) as service,
        bench.crawl(service, size=dose.size, hosts=dose.size // 100, coded=True, delay=0.05) as crawl,
    ):
        died = deaths_until_the_end(crawl)
        crawl.finish(patience=600)
        facts = crawl.collect()
        deaths = {stage: sum(len(p.deaths) for p in crawl.workers.of(stage)) for stage in ("fetcher", "parser")}
        codes = {code for process in crawl.workers.of() for code in process.deaths}
        failures = _failures(crawl)
    expected, wanted = fates(crawl)
    faults = [Fault("death by poison", at, at + SESSION + REBALANCE) for at in died]
    verdict = checker.judge(expected, facts, faults, crawl.limits)
    for url, failure in wanted.items():
        found = failures.get(url, ("nothing", 0.0))
        verdict.require(found[0] == failure, f"{url} failed as {found[0]}, not {failure}")
    slowest = max(
        (failures[url][1] - max((at for at in died if at < failures[url][1]), default=crawl.began) for url in wanted
         if url in failures), default=0.0,
    )  # fmt: skip
    whole = max((failures[url][1] - _first(facts, url) for url in wanted if url in failures), default=0.0)
    verdict.figures |= {
        **{f"poisonous for the {what}": list(wanted.values()).count(what) for what in ("parser", "decode")},
        **{f"deaths of {stage}s": count for stage, count in deaths.items()},
        "slowest from the last death to the failure, s": round(slowest, 1),
        "slowest from the first request to the failure, s": round(whole, 1),
    }
    verdict.require(all(deaths.values()), f"nobody died: {deaths}")
    verdict.require(codes <= {-9}, f"workers ended with {codes}")
    verdict.require(slowest <= ON_AGAIN, f"a partition went on after {slowest:.0f} s, not {ON_AGAIN:.0f}")
    return verdict


def deaths_until_the_end(crawl: Crawling) -> list[float]:
    """When workers died, seconds since the epoch."""
    died: list[float] = []

    def ended() -> bool:
        died.extend([time.time()] * (crawl.workers.deaths - len(died)))
        return crawl.has_ended()

    crawl.workers.until(ended, "the crawl ends", 900)
    return died


def fates(crawl: Crawling) -> tuple[dict[str, Fate], dict[str, str]]:
    """What must become of every URL of the site, and the failure class of each poisonous one."""
    expected, wanted = crawl.site.expected(), dict[str, str]()
    for url, fate in expected.items():
        host, number = urlsplit(url).netloc, number_of(urlsplit(url).path, crawl.site.pages)
        if fate == "done" and number is not None:
            if kills_decoder(host, number):
                wanted[url] = "decode"
            elif kills_parser(host, number):
                wanted[url] = "parser"
    return expected | dict.fromkeys(wanted, "failed"), wanted


def _failures(crawl: Crawling) -> Mapping[str, tuple[str, float]]:
    """Class and time (seconds since the epoch) of each final failure that was exported."""
    found = {}
    for path in crawl.service.out.rglob("failures.jsonl"):
        for line in path.read_text().splitlines():
            failure = json.loads(line)
            if failure["next"]["action"] == "none":
                found[failure["url"]] = (failure["failure"], failure["at"] / 1000)
    return found


def _first(facts: Facts, url: str) -> float:
    return min((entry.start for entry in facts.requests if checker.url_of(entry) == url), default=0.0)


LINES = (
    Line(
        "poison", "poison",
        "each in `failures` after N tries, counted across processes; partition on ≤ 30 s; lost 0",
        poison,
        Dose("pages that kill each parser, bodies that kill each decoder, on 16 hosts, 1,600 URLs", size=1_600),
        Dose("pages that kill each parser, bodies that kill each decoder, on 8 hosts, 800 URLs", size=800),
    ),
)  # fmt: skip
