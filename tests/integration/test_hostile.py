"""`fyke crawl` through hosts that misbehave: the crawl ends, each URL as it must, and none is asked much.

The hosts are in `hostile_hosts`; one server on loopback is all of them.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.integration.hostile_hosts import CONDITIONAL, HOSTS, LIMITS, TAGGED, Host
from tests.integration.shell import Shell, shell_in
from tests.kafka import TestBroker
from tests.servers.hostile import HostileServer
from tests.sites import asserts

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(300)]


def served_by(hosts: Sequence[Host]) -> HostileServer:
    return HostileServer([{"host": f"{host.name}.test", **route} for host in hosts for route in host.routes])


async def crawl(shell: Shell, server: HostileServer, hosts: Sequence[Host], *options: str) -> str:
    (shell.folder / "rules.toml").write_text(LIMITS)
    seeds = [host.url(path) for host in hosts for path in host.seeds]
    everywhere = [part for entry in server.connect_to() for part in ("--connect-to", entry)]
    command = ("crawl", *seeds, *everywhere, "--allow-private", "--rules", "rules.toml", "--name", "c", "--out", "out")
    return await asyncio.to_thread(shell.run, *command, *options)


def site_of(url: str) -> str:
    return urlsplit(url).netloc.removesuffix(".test")


def differences(folder: Path, server: HostileServer, hosts: Sequence[Host]) -> list[str]:
    """Where the pages, final failures and requests of a host are not those it must come to."""
    output = asserts.read(folder)
    pages = [record["url"] for record in output.records]
    final = [(one["url"], one["failure"]) for one in output.failures if one["next"]["action"] == "none"]
    asked = Counter(site_of(seen.url) for seen in server.seen)
    problems = [f"{name}: asked, and is none of the hosts" for name in asked.keys() - {host.name for host in hosts}]
    for host in hosts:
        found = sorted(url for url in pages if site_of(url) == host.name)
        expected = sorted(map(host.url, host.pages))
        if len(found) - len(expected) not in host.endless or not set(expected) <= set(found):
            problems.append(f"{host.name}: pages {found}")
        failures = {url: failure for url, failure in final if site_of(url) == host.name}
        if failures != {host.url(path): failure for path, failure in host.failures.items()}:
            problems.append(f"{host.name}: failures {failures}")
        if asked[host.name] > host.most:
            problems.append(f"{host.name}: {asked[host.name]} requests")
    return problems


async def test_each_host_comes_to_what_it_must(tmp_path: Path, broker: TestBroker) -> None:
    with shell_in(tmp_path, {"FYKE_KAFKA_PREFIX": broker.prefix, "FYKE_KAFKA_BOOTSTRAP": broker.bootstrap}) as shell:
        shell.run("topics", "apply")
        async with served_by(HOSTS) as server:
            output = await crawl(shell, server, HOSTS)
            (status,) = json.loads(await asyncio.to_thread(shell.run, "status", "c", "--json"))["crawls"]
    assert differences(shell.folder / "out", server, HOSTS) == []
    assert "everything in reach was fetched" in output
    kept_out = status["counts"]["exclusions"]
    assert kept_out.pop("trap:novelty") > 1
    assert kept_out == sum_of(host.exclusions for host in HOSTS)
    assert not any(seen.header("Cookie") for seen in server.seen)
    assert server.intruders == 0


async def test_hosts_that_are_visited_again(tmp_path: Path, broker: TestBroker) -> None:
    """Validators go back byte for byte; what has not changed, or is gone, ends like anything else."""
    with shell_in(tmp_path, {"FYKE_KAFKA_PREFIX": broker.prefix, "FYKE_KAFKA_BOOTSTRAP": broker.bootstrap}) as shell:
        shell.run("topics", "apply")
        async with served_by(CONDITIONAL) as server:
            await crawl(shell, server, CONDITIONAL, "--recrawl", "1", "--rounds", "2", "--in-process")
    assert differences(shell.folder / "out", server, CONDITIONAL) == []
    first, second = (seen for seen in server.seen if seen.url == "http://weak.test/")
    assert (first.header("If-None-Match"), first.header("If-Modified-Since")) == (None, None)
    assert (second.header("If-None-Match"), second.header("If-Modified-Since")) == (TAGGED[0][1], TAGGED[1][1])


def sum_of(numbers: Iterable[Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for one in numbers:
        total.update(one)
    return total
