"""Workers of each kind are stopped for longer than the session time-out and go on: others have had their work since.

`FYKE_TEST_ROUNDS` says how often (10 for the full version; the delay of the crawl makes it last long enough).
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from agents.io.admin import Admin
from tests.faults import sites
from tests.faults.fleet import STAGES, Fleet, arguments, fleet, host_names
from tests.kafka import settings_for
from tests.sites import asserts, nginx

ROUNDS = int(os.environ.get("FYKE_TEST_ROUNDS", "2"))
SESSION = 6.0
HEARTBEAT = 1.0
SETTINGS = {"kafka": {"session_timeout": SESSION, "heartbeat": HEARTBEAT, "rebalance_timeout": 15.0}}
NAME = "zombies"
DELAY = 0.02 + 0.004 * ROUNDS  # of about 1,170 pages on each host, which must outlast the rounds

pytestmark = [pytest.mark.site, pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900 + 120 * ROUNDS)]


def test_zombies(tmp_path: Path) -> None:
    names = host_names(4)
    with (
        nginx.serve(sites.many_hosts(names), tmp_path / "nginx") as web,
        fleet(tmp_path / "crawl", 2, SETTINGS) as ours,
    ):
        options = ("--name", NAME, "--delay", f"{DELAY:g}", "--parallelism", "2")
        ours.start(*arguments(sites.seeds(names), ours, web.connect_to(), *options))
        ours.until(sites.reached(web, 300), "300 pages are fetched")
        for _ in range(ROUNDS):
            frozen = []
            for stage in STAGES:
                frozen.append(ours.busy(stage))
                ours.freeze(frozen[-1])
            time.sleep(SESSION + 2 * HEARTBEAT)
            print(f"frozen until {sites.pages(web)} pages: {'; '.join(map(str, frozen))}")
            ours.thaw()
            ours.until(lambda: all(map(ours.serves, STAGES)), "all workers have partitions again")
        output = ours.end(seconds=300 + 60 * ROUNDS)
        requests = web.requests()
        lag = asyncio.run(remaining(ours))

    print(f"{asserts.repeats(requests)} fetches repeated; restarts: {'started again' in output}")
    asserts.exact_sets(asserts.read(ours.crawl.out), sites.expected_by_origin(names))
    assert not any(lag.values()), lag


async def remaining(ours: Fleet) -> dict[str, int]:
    """What each group has not committed, by group and topic; the broker is started again to say so."""
    bootstrap = await asyncio.to_thread(ours.broker().ensure)
    groups = [("frontier", "urls"), ("frontier", "inbox"), ("fetcher", "fetches"), ("parser", "pages"),
              (f"exporter.{NAME}", "records"), (f"exporter.{NAME}", "failures")]  # fmt: skip
    async with Admin(bootstrap, settings_for(ours.crawl.state, bootstrap)) as admin:
        return {f"{group} {topic}": sum((await admin.lag(group, topic)).values()) for group, topic in groups}
