"""`fyke` as a person runs it: child processes, a real broker, a site on loopback that counts its requests.

Where a test shows how the broker comes and goes, its commands start one (`alone`); elsewhere they find the session's,
as if `fyke broker start` had started it (`shell`). Where it does not matter who works, a crawl works in one process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.io.broker import EmbeddedBroker
from agents.io.demo import DemoSite
from streams.errors import Exit
from tests.integration.shell import Shell, Site, counting, shell_in, wait_for
from tests.kafka import TestBroker, settings_for

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def site() -> Iterator[Site]:
    with counting(150) as site:
        yield site


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Shell]:
    """No broker runs on the state folder until a command starts one."""
    with shell_in(tmp_path, {}) as shell:
        yield shell
    EmbeddedBroker(settings_for(shell.state)).stop(force=True)


@pytest.fixture
def shell(tmp_path: Path, broker: TestBroker, session_state: Path) -> Iterator[Shell]:
    """The session's broker runs on the state folder; topics and groups are the test's own."""
    with shell_in(tmp_path, {"FYKE_KAFKA_PREFIX": broker.prefix}) as shell:
        shell.state.mkdir()
        (shell.state / "broker").symlink_to(session_state / "broker")
        yield shell


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def urls(folder: Path) -> list[str]:
    return sorted(record["url"] for record in lines(folder / "records.jsonl"))


def whole(site: Site) -> list[str]:
    return sorted(f"{site.url}/{number}" for number in range(site.pages))


def until_served(site: Site, count: int, crawl: subprocess.Popen[str]) -> None:
    wait_for(lambda: site.served >= count, (crawl,), pause=0.02)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_demonstration_ends_with_its_exact_pages_and_leaves_nothing_running(alone):
    output = alone.run("crawl", "--demo", "--name", "demo")
    folder = alone.folder / "fyke-out/demo"
    assert len(lines(folder / "records.jsonl")) == DemoSite().pages
    assert lines(folder / "failures.jsonl") == []
    assert "everything in reach was fetched" in output
    assert f"records    fyke-out/demo/records.jsonl ({DemoSite().pages})" in output
    assert json.loads(shell_status(alone))["running"] is False
    for worker in alone.state.glob("workers/*/worker"):
        assert not alive(int(worker.read_text()))


def shell_status(shell: Shell) -> str:
    return shell.run("broker", "status", "--json", expected=1)


def test_a_crawl_is_never_written_over_an_old_one(shell, site):
    site.pages = 7
    for _ in range(2):
        shell.run("crawl", f"{site.url}/0", "--in-process")
    names = sorted(path.name for path in (shell.folder / "fyke-out").iterdir())
    assert names == [site.url[7:].replace(":", "-"), site.url[7:].replace(":", "-") + "-2"]
    for name in names:
        assert urls(shell.folder / "fyke-out" / name) == whole(site)
    assert site.requests["/0"] == 2
    output = shell.run("crawl", f"{site.url}/0", "--name", names[0], expected=Exit.USAGE)
    assert f"fyke resume {names[0]}" in output


def test_an_interrupted_crawl_goes_on_where_it_was(shell, site):
    site.pause = 0.1
    crawl = shell.start("crawl", f"{site.url}/0", "--parallelism", "4", "--out", "out")
    until_served(site, 30, crawl)
    crawl.send_signal(signal.SIGINT)
    output = shell.end(crawl, Exit.INTERRUPTED)
    assert "Go on: fyke resume --out out" in output
    asked = site.served
    assert asked < site.pages
    time.sleep(1)
    assert site.served == asked, "nothing goes on behind the user's back"

    site.pause = 0.0
    shell.run("resume", "--out", "out")
    assert urls(shell.folder / "out") == whole(site)
    assert site.repeated() == {}, "what was fetched is not fetched again"
    assert "has ended" in shell.run("resume", "--out", "out", expected=Exit.USAGE)


def test_a_killed_crawl_takes_its_workers_along_and_goes_on(alone, site):
    site.pause = 0.1
    crawl = alone.start("crawl", f"{site.url}/0", "--parallelism", "4")
    until_served(site, 20, crawl)
    pids = [alone.worker_pid(f"{stage}-1") for stage in ("frontier", "fetcher", "parser", "exporter")]
    crawl.kill()
    crawl.communicate()
    deadline = time.monotonic() + 120
    while any(map(alive, pids)):
        assert time.monotonic() < deadline, "workers outlived their command"
        time.sleep(0.1)
    site.pause = 0.0
    alone.run("resume")
    (folder,) = (alone.folder / "fyke-out").iterdir()
    assert urls(folder) == whole(site)


@pytest.mark.parametrize("stage", ["frontier", "fetcher", "parser", "exporter"])
def test_a_killed_worker_is_started_again_without_loss(shell, site, stage):
    site.pause = 0.05
    crawl = shell.start("crawl", f"{site.url}/0", "--parallelism", "4", "--out", "out")
    until_served(site, 40, crawl)
    os.kill(shell.worker_pid(f"{stage}-1"), signal.SIGKILL)
    output = shell.end(crawl)
    assert f"{stage}-1 was ended by SIGKILL" in output
    assert "restarts   1 of worker processes" in output
    assert urls(shell.folder / "out") == whole(site)


def test_a_killed_broker_is_started_again_without_loss(alone, site):
    site.pause = 0.05
    crawl = alone.start("crawl", f"{site.url}/0", "--parallelism", "4", "--out", "out")
    until_served(site, 40, crawl)
    os.kill(json.loads(alone.run("broker", "status", "--json"))["pid"], signal.SIGKILL)
    output = alone.end(crawl)
    assert "The broker is back" in output
    assert urls(alone.folder / "out") == whole(site)


def test_limits_and_empty_crawls_have_exit_codes_of_their_own(shell, site):
    site.pause = 0.05
    output = shell.run(
        "crawl",
        f"{site.url}/0",
        "--parallelism",
        "1",
        "--limit",
        "5",
        "--out",
        "a",
        "--in-process",
        expected=Exit.LIMIT,
    )
    assert "the page limit was reached" in output
    assert 5 <= len(urls(shell.folder / "a")) < site.pages
    shell.run("crawl", f"{site.url}/nothing", "--out", "b", "--in-process", expected=Exit.NO_PAGE)
    (failure,) = lines(shell.folder / "b/failures.jsonl")
    assert (failure["url"], failure["next"]["action"]) == (f"{site.url}/nothing", "none")


def test_a_second_crawl_shares_the_broker_and_both_end_exactly(alone, site):
    site.pause = 0.1
    first = alone.start("crawl", f"{site.url}/0", "--parallelism", "4", "--out", "a")
    until_served(site, 20, first)
    refused = alone.run("crawl", f"{site.url}/0", "--connect-to", "a:1:127.0.0.1:2", "--out", "c", expected=Exit.USAGE)
    assert "FYKE_FETCH_CONNECT_TO" in refused
    site.pause = 0.0
    second = alone.start("crawl", f"{site.url}/0", "--out", "b")
    alone.end(second)
    alone.end(first)
    assert urls(alone.folder / "a") == urls(alone.folder / "b") == whole(site)
    assert json.loads(shell_status(alone))["running"] is False


def test_two_workers_of_each_stage(shell, site):
    shell.run("crawl", f"{site.url}/0", "--workers", "2", "--out", "out")
    assert urls(shell.folder / "out") == whole(site)
    assert sorted(path.name for path in (shell.state / "workers").iterdir()) == [
        "exporter-1", "fetcher-1", "fetcher-2", "frontier-1", "frontier-2", "parser-1", "parser-2",
    ]  # fmt: skip


def test_all_stages_in_one_process(shell, site):
    crawl = shell.start("crawl", f"{site.url}/0", "--in-process", "--out", "out")
    shell.end(crawl)
    assert urls(shell.folder / "out") == whole(site)
    assert not list((shell.state / "logs").glob("*.log")) if (shell.state / "logs").exists() else True


def test_workers_by_hand_take_seeds_and_the_exporter_writes_all_crawls(alone, site):
    bootstrap = alone.run("broker", "start").splitlines()[-1]
    assert "all topics are as they should be" in alone.run("topics", "check")
    assert "nothing to do" in alone.run("topics", "apply")
    private = {"FYKE_FETCH_ALLOW_PRIVATE": "true"}
    workers = [alone.start("worker", stage, **private) for stage in ("frontier", "fetcher", "parser")]
    workers.append(alone.start("worker", "exporter", "--out", "out", **private))
    assert "2 seeds accepted" in alone.run("seed", f"{site.url}/0", f"{site.url}/1", "--meta", '{"job": 7}')
    assert "2 seeds accepted" in feed(alone, f"{site.url}/2\n# a remark\n" + json.dumps({"url": f"{site.url}/x"}))
    wait_for(lambda: len(written(alone, "records")) == 3 and len(written(alone, "failures")) == 1, workers)
    assert {record["crawl"] for record in written(alone, "records")} == {"default"}
    assert [record["meta"] for record in written(alone, "records") if record["url"].endswith("/1")] == [{"job": 7}]
    assert site.requests["/3"] == 0, "the default crawl follows no links"
    status = json.loads(alone.run("status", "--json", "--kafka", bootstrap))
    assert [crawl["id"] for crawl in status["crawls"]] == ["default"]
    assert "default" in alone.run("status")
    for worker in workers:
        worker.terminate()
    for worker in workers:
        alone.end(worker)


def feed(shell: Shell, text: str) -> str:
    (shell.folder / "seeds.txt").write_text(text)
    return shell.run("seed", "--file", "seeds.txt")


def written(shell: Shell, name: str) -> list[dict]:
    path = shell.folder / "out" / f"{name}.jsonl"
    return lines(path) if path.exists() else []


def printed(output: str) -> list[dict[str, Any]]:
    """The JSON array that a command printed, behind what it said while it started the broker."""
    found: list[dict[str, Any]] = json.loads(output[output.index("[") :])
    return found


def test_a_kafka_of_ones_own(alone, site, broker):
    site.pages = 7
    variables = {"FYKE_KAFKA_PREFIX": broker.prefix, "FYKE_KAFKA_BOOTSTRAP": broker.bootstrap}
    missing = alone.run("crawl", f"{site.url}/0", "--out", "out", expected=Exit.ENVIRONMENT, **variables)
    assert "fyke topics apply" in missing
    assert "made " in alone.run("topics", "apply", **variables)
    alone.run("crawl", f"{site.url}/0", "--out", "out", "--in-process", **variables)
    assert urls(alone.folder / "out") == whole(site)
    assert not (alone.state / "broker").exists()
    assert "ended exhausted" in " ".join(alone.run("status", **variables).split())
    refused = alone.run("crawl", f"{site.url}/0", "--kafka", "127.0.0.1:1", expected=Exit.ENVIRONMENT)
    assert "127.0.0.1:1" in refused


@pytest.mark.alone
def test_a_crawl_is_paused_and_cancelled_by_another_hand(shell, site):
    site.pause = 0.05
    crawl = shell.start("crawl", f"{site.url}/0", "--name", "c", "--delay", "0.2", "--parallelism", "1", "--in-process")
    wait_for(lambda: site.served >= 5, (crawl,))
    shell.run("pause", "c")
    time.sleep(2)
    served = site.served
    time.sleep(1.5)
    assert site.served == served, "it is fetched although it was paused two seconds ago"
    assert '"state": "paused"' in shell.run("status", "c", "--json")
    shell.run("unpause", "c")
    wait_for(lambda: site.served > served, (crawl,))
    shell.run("cancel", "c", "--yes")
    output = shell.end(crawl, Exit.CANCELLED)
    assert "somebody cancelled it" in output
    lines = (shell.folder / "fyke-out" / "c" / "records.jsonl").read_text().splitlines()
    assert len(lines) == site.served < 150
    assert "has ended: cancelled" in shell.run("resume", "c", expected=Exit.USAGE)


def test_after_a_crawl_its_failures_are_explained_and_tried_again(alone, site):
    """The broker has stopped with the crawl: a command starts it for its own time, unless somebody has."""
    site.pages = 6
    alone.run("crawl", f"{site.url}/0", f"{site.url}/7", "--name", "c", "--in-process")
    failure = printed(alone.run("failures", "--json"))
    assert [(one["url"], one["failure"]) for one in failure] == [(f"{site.url}/7", "http_status")]
    assert json.loads(shell_status(alone))["running"] is False
    alone.run("broker", "start")
    (why,) = printed(alone.run("why", f"{site.url}/7", "--json"))
    assert (why["crawl"], why["state"], why["status"], why["witness"]) == ("c", "failed", 404, "state")
    alone.run("failures", "--redrive", "--reopen", "--yes")
    site.pages = 8
    alone.run("resume", "c")
    urls = [json.loads(line)["url"] for line in (alone.folder / "fyke-out/c/records.jsonl").read_text().splitlines()]
    assert sorted(urls) == [f"{site.url}/{n}" for n in (*range(6), 7)]
    (resolved,) = printed(alone.run("failures", "--resolved", "--json"))  # and no other: it stands for the whole URL
    assert (resolved["url"], resolved["visit"], resolved["next"]["action"]) == (f"{site.url}/7", 1, "resolved")
