"""Ctrl-C in the middle of a real crawl, and going on. The sets stay exact. Kills: `tests.faults.kills`, `.bounces`.

The site is postgresql-doc-15 under several host names that lie in all shards; what a crawl must find is known from an
independent walk (`tests.sites.walk`).
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from streams.errors import Exit
from tests.faults import sites
from tests.faults.fleet import STAGES, arguments, fleet, host_names
from tests.sites import asserts, nginx

pytestmark = [pytest.mark.site, pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]

FAST = ("--delay", "0", "--parallelism", "8")


def test_interrupt_and_resume(tmp_path: Path) -> None:
    names = host_names(4)
    with nginx.serve(sites.many_hosts(names), tmp_path / "nginx") as web, fleet(tmp_path / "crawl", 2) as ours:
        ours.start(*arguments(sites.seeds(names), ours, web.connect_to(), *FAST))
        ours.until(sites.reached(web, 1000), "1000 pages are fetched")
        flying = {stage: ours.busy(stage).in_flight for stage in STAGES[:-1]}
        assert ours.process is not None
        ours.process.send_signal(signal.SIGINT)
        output = ours.end(Exit.INTERRUPTED)
        before = web.requests()
        print(f"interrupted at {len(before)} requests; in flight {flying}")
        command = f"fyke resume --out {ours.crawl.out}"
        assert f"Interrupted. Go on: {command}" in output
        ours.start(*command.split()[1:])
        ours.end()
        after = web.requests()[len(before) :]

    asserts.exact_sets(asserts.read(ours.crawl.out), sites.expected_by_origin(names))
    fetched = {(request.host, request.uri) for request in before if request.status == 200}
    again = [request for request in after if (request.host, request.uri) in fetched]
    assert after
    assert not again, f"{len(again)} pages were fetched again: {again[:8]}"
    asserts.requests_once([*before, *after], sites.expected_by_host(names), repeats=asserts.repeats(before))
