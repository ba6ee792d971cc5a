"""Real pages of many hosts, that ask to wait, fail in bursts and are slow, while workers are killed and frozen.

What must hold: the audit of the log is clean, so is the servers' own log, and every URL ends somewhere. The full
version has all of the corpus' hosts: `FYKE_TEST_HOSTS=920` (some 107,000 requests; the largest host alone takes ten
minutes at this delay).
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterable, Mapping
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest

from streams.policy import urls
from tests.faults.fleet import Fleet, arguments, fleet
from tests.servers import hosts as server
from tests.servers.hosts import Entry, Host, Wait
from tests.sites import asserts
from tests.sites.crawling import environment
from tests.sites.pages import GENERATED, PageWeb, page_web

HOSTS = int(os.environ.get("FYKE_TEST_HOSTS", "12"))
FULL = HOSTS > 100
ROUNDS = 5 if FULL else 1
KILLED = ("fetcher", "frontier", "fetcher", "frontier", "fetcher")  # one that was killed five times is given up
FROZEN = ("parser", "fetcher", "frontier", "fetcher", "frontier")

LINKS = 1 << 20 if FULL else 100
"""Links to itself that the page of a host may have: in the short version they take half a minute at this delay."""

DELAY, CRAWL_DELAY, PARALLELISM = 0.3, 0.6, 2
SLOW = 0.7
"""Seconds: longer than the delay, so that two requests run at the same time."""

SESSION, HEARTBEAT = 6.0, 1.0
SETTINGS = {"kafka": {"session_timeout": SESSION, "heartbeat": HEARTBEAT, "rebalance_timeout": 15.0}}
PATIENCE = 5400.0 if FULL else 240.0
ROUNDING = 0.001
READ = 1.0
"""Seconds a busy fetcher may take to read an answer; what it sends meanwhile could not know of it."""

pytestmark = [
    pytest.mark.alone,
    pytest.mark.site,
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.timeout(PATIENCE + 600),
]

HABITS: Mapping[int, dict[str, Any]] = {
    0: {"robots": f"User-agent: *\nCrawl-delay: {CRAWL_DELAY}\n"},
    1: {"waits": (Wait(5, 6, 429, retry_after=3),)},
    2: {"waits": (Wait(8, 10, 503),)},
    3: {"waits": (Wait(12, 12, 503, retry_after=3, as_date=True),)},
    4: {"slow": 3, "slow_for": SLOW},
    5: {"waits": (Wait(3, 3, 429), Wait(20, 21, 429, retry_after=2))},
}
"""What hosts do beside answering, by their number modulo 8."""


def test_many_hosts(tmp_path: Path) -> None:
    web = page_web(tmp_path / "pages", HOSTS, LINKS)
    sites = {
        host: Host(files, **HABITS.get(number % 8, {})) for number, (host, files) in enumerate(web.files.items())
    }  # fmt: skip
    print(f"{len(sites)} hosts, {len(web.pages)} pages, {len(web.links)} links in scope")
    with server.serve(sites, tmp_path / "server") as running, fleet(tmp_path / "crawl", 2, SETTINGS) as ours:
        everywhere = ("--connect-to", f"::127.0.0.1:{running.port}")
        options = ("--name", "pages", "--delay", f"{DELAY:g}", "--parallelism", str(PARALLELISM))
        began = time.monotonic()
        ours.start(*arguments(web.seeds, ours, everywhere, *options))
        ours.until(lambda: running.count() >= 5 * len(sites), "the crawl is under way", PATIENCE)
        for number in range(ROUNDS):
            fault(ours, number)
        ours.end(seconds=PATIENCE)
        took = time.monotonic() - began
        entries = sorted(running.entries(), key=lambda entry: (entry.host, entry.start))
        audit = audited(ours)

    print(f"{len(entries)} requests in {took:.0f} s; the audit saw {audit['requests']}, {audit['holds']} of them held")
    assert audit["clean"], json.dumps(audit, indent=1)[:4000]
    check_log(entries, sites)
    accounts = audit["crawls"][0]["urls"]
    print(f"accounts: {accounts}")
    check_urls(ours, web, accounts)


def fault(ours: Fleet, number: int) -> None:
    """A worker is killed; another one is stopped until its partitions have moved, and comes back."""
    killed = ours.busy(KILLED[number], least=0)
    ours.kill(killed)
    frozen = ours.busy(FROZEN[number], least=0)
    ours.freeze(frozen)
    time.sleep(SESSION + 2 * HEARTBEAT)
    ours.thaw()
    ours.until(lambda: all(map(ours.serves, ("frontier", "fetcher", "parser"))), "all workers have partitions again")
    print(f"killed {killed}; frozen {frozen}")


def audited(ours: Fleet) -> Any:
    """What `fyke audit` says of the finished crawl."""
    done = subprocess.run(
        ours.crawl.command("audit", "--json"), cwd=ours.crawl.folder, env=environment(), capture_output=True, text=True,
        check=False, timeout=PATIENCE,
    )  # fmt: skip
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert done.returncode == (0 if report["clean"] else 5), done.stderr
    return report


# --- the servers' log


def check_log(entries: list[Entry], sites: Mapping[str, Host]) -> None:
    by_host = {host: list(group) for host, group in groupby(entries, key=lambda entry: entry.host)}
    counts = {host: len(by_host.get(host, ())) for host in sites}
    problems = [f"{host}: {count} requests" for host, count in counts.items() if count < GENERATED]
    tightest = float("inf")
    for host, requests in by_host.items():
        delay = CRAWL_DELAY if host in sites and sites[host].robots else DELAY
        for earlier, later in pairwise(requests):
            tightest = min(tightest, later.start - earlier.start - delay)
            if later.start - earlier.start < delay - ROUNDING:
                problems.append(f"{host}: {later.start - earlier.start:.4f} s between {earlier} and {later}")
        problems += [f"{host}: {count} at a time" for count in [most_at_a_time(requests)] if count > PARALLELISM]
        problems += hasty(requests)
    print(f"servers' log: the tightest gap is {1000 * tightest:.1f} ms longer than its delay")
    assert not problems, "\n".join(problems[:20])


def most_at_a_time(requests: Iterable[Entry]) -> int:
    """A request is under way from its arrival until its answer leaves."""
    steps = sorted(step for entry in requests for step in ((entry.start, 1), (entry.answered, -1)))
    most = count = 0
    for _, step in steps:
        count += step
        most = max(most, count)
    return most


def hasty(requests: list[Entry]) -> list[str]:
    """Requests that came while the host had asked to be left alone."""
    waits = [entry for entry in requests if entry.retry_after]
    return [
        f"{entry.host}: {entry} came {entry.start - wait.answered:.3f} s after {wait}"
        for wait in waits
        for entry in requests
        if wait.answered + READ < entry.start < wait.answered + wait.retry_after - ROUNDING
    ]


# --- every URL


def check_urls(ours: Fleet, web: PageWeb, accounts: Mapping[str, int]) -> None:
    """Pages became records, all other links failures or exclusions; nothing else was met, nothing stays open."""
    output = asserts.read(ours.crawl.out)
    records = [record["url"] for record in output.records]
    assert len(records) == len(set(records)), "a record was written twice"
    pages = keys(web.pages)
    assert keys(records) == pages, sorted(keys(records) ^ pages)[:8]
    failed = keys(failure["url"] for failure in output.failures if failure["next"]["action"] == "none")
    expected = keys(web.links) | pages
    assert not (failed | pages) - expected, sorted((failed | pages) - expected)[:8]
    excluded = expected - failed - pages
    assert len(excluded) == accounts["excluded"], sorted(excluded)[:8]
    assert accounts["done"] == len(pages)
    assert accounts["failed"] == len(failed)
    assert not accounts["open"]


def keys(found: Iterable[str]) -> set[str]:
    return {urls.canonical(url) for url in found}
