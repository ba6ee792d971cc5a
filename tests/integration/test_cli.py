"""`fyke` as a person runs it: child processes, a real broker, a site on loopback that counts its requests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from agents.io.demo import DemoSite
from streams.errors import Exit

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(300)]


@dataclass
class Site:
    """`/0` … `/N-1`: page n links to 2n+1 and 2n+2, so that the whole site hangs on `/0`."""

    pages: int
    pause: float = 0.0
    requests: Counter[str] = field(default_factory=Counter)
    url: str = ""

    def page(self, path: str) -> bytes | None:
        name = path.strip("/")
        if not name.isdigit() or int(name) >= self.pages:
            return None
        links = "".join(f'<a href="/{2 * int(name) + n}">x</a>' for n in (1, 2) if 2 * int(name) + n < self.pages)
        return f"<!doctype html><title>{name}</title>{links}".encode()

    @property
    def served(self) -> int:
        return sum(count for path, count in self.requests.items() if path != "/robots.txt")

    def repeated(self) -> dict[str, int]:
        return {path: count for path, count in self.requests.items() if count > 1}


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site(150)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 60

        def do_GET(self) -> None:
            site.requests[self.path] += 1
            time.sleep(site.pause)
            body = site.page(self.path)
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    site.url = f"http://127.0.0.1:{server.server_port}"
    yield site
    server.shutdown()
    server.server_close()


@dataclass
class Shell:
    """A folder to run `fyke` in, with a state folder of its own. Kills at the end what still runs."""

    folder: Path
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("FYKE_")}
        own = {"PYTHONPATH": str(ROOT), "FYKE_WORKER_STATE": str(self.state), "FYKE_EXPORT_FSYNC": "false"}
        process = subprocess.Popen(
            (sys.executable, "-m", "agents.cli.main", *arguments),
            cwd=self.folder,
            env=clean | own | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.running.append(process)
        return process

    def end(self, process: subprocess.Popen[str], expected: int = Exit.ENDED) -> str:
        """Wait for the process; what it printed. Fails with that unless it ended with `expected`."""
        output, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == expected, f"exit code {process.returncode}:\n{output}\n{self.logs()}"
        return output

    def run(self, *arguments: str, expected: int = Exit.ENDED, **variables: str) -> str:
        return self.end(self.start(*arguments, **variables), expected)

    def logs(self) -> str:
        """The ends of the workers' logs."""
        return "\n".join(f"== {log.name}\n{log.read_text()[-1500:]}" for log in self.state.glob("logs/*.log"))

    def worker_pid(self, name: str) -> int:
        path = self.state / "workers" / name / "worker"
        wait_for(lambda: path.exists() and path.read_text(), ())
        return int(path.read_text())


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    for process in shell.running:
        if process.poll() is None:
            process.kill()
            process.communicate()
    subprocess.run(
        (sys.executable, "-m", "agents.cli.main", "broker", "stop", "--force", "--state", str(shell.state)),
        env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True, capture_output=True,
    )  # fmt: skip


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


def test_the_demonstration_ends_with_its_exact_pages_and_leaves_nothing_running(shell):
    output = shell.run("crawl", "--demo", "--name", "demo")
    folder = shell.folder / "fyke-out/demo"
    assert len(lines(folder / "records.jsonl")) == DemoSite().pages
    assert lines(folder / "failures.jsonl") == []
    assert "everything in reach was fetched" in output
    assert f"records    fyke-out/demo/records.jsonl ({DemoSite().pages})" in output
    assert json.loads(shell_status(shell))["running"] is False
    for worker in shell.state.glob("workers/*/worker"):
        assert not alive(int(worker.read_text()))


def shell_status(shell: Shell) -> str:
    return shell.run("broker", "status", "--json", expected=1)


def test_a_crawl_is_never_written_over_an_old_one(shell, site):
    site.pages = 7
    for _ in range(2):
        shell.run("crawl", f"{site.url}/0")
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


def test_a_killed_crawl_takes_its_workers_along_and_goes_on(shell, site):
    site.pause = 0.1
    crawl = shell.start("crawl", f"{site.url}/0", "--parallelism", "4")
    until_served(site, 20, crawl)
    pids = [shell.worker_pid(f"{stage}-1") for stage in ("frontier", "fetcher", "parser", "exporter")]
    crawl.kill()
    crawl.communicate()
    deadline = time.monotonic() + 40
    while any(map(alive, pids)):
        assert time.monotonic() < deadline, "workers outlived their command"
        time.sleep(0.1)
    site.pause = 0.0
    shell.run("resume")
    (folder,) = (shell.folder / "fyke-out").iterdir()
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


def test_a_killed_broker_is_started_again_without_loss(shell, site):
    site.pause = 0.05
    crawl = shell.start("crawl", f"{site.url}/0", "--parallelism", "4", "--out", "out")
    until_served(site, 40, crawl)
    os.kill(json.loads(shell.run("broker", "status", "--json"))["pid"], signal.SIGKILL)
    output = shell.end(crawl)
    assert "The broker is back" in output
    assert urls(shell.folder / "out") == whole(site)


def test_limits_and_empty_crawls_have_exit_codes_of_their_own(shell, site):
    site.pause = 0.05
    output = shell.run(
        "crawl", f"{site.url}/0", "--parallelism", "1", "--limit", "5", "--out", "a", expected=Exit.LIMIT
    )
    assert "the page limit was reached" in output
    assert 5 <= len(urls(shell.folder / "a")) < site.pages
    shell.run("crawl", f"{site.url}/nothing", "--out", "b", expected=Exit.NO_PAGE)
    (failure,) = lines(shell.folder / "b/failures.jsonl")
    assert (failure["url"], failure["next"]["action"]) == (f"{site.url}/nothing", "none")


def test_a_second_crawl_shares_the_broker_and_both_end_exactly(shell, site):
    site.pause = 0.1
    first = shell.start("crawl", f"{site.url}/0", "--parallelism", "4", "--out", "a")
    until_served(site, 20, first)
    refused = shell.run("crawl", f"{site.url}/0", "--connect-to", "a:1:127.0.0.1:2", "--out", "c", expected=Exit.USAGE)
    assert "FYKE_FETCH_CONNECT_TO" in refused
    site.pause = 0.0
    second = shell.start("crawl", f"{site.url}/0", "--out", "b")
    shell.end(second)
    shell.end(first)
    assert urls(shell.folder / "a") == urls(shell.folder / "b") == whole(site)
    assert json.loads(shell_status(shell))["running"] is False


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


def test_workers_by_hand_take_seeds_and_the_exporter_writes_all_crawls(shell, site):
    bootstrap = shell.run("broker", "start").splitlines()[-1]
    assert "all topics are as they should be" in shell.run("topics", "check")
    assert "nothing to do" in shell.run("topics", "apply")
    private = {"FYKE_FETCH_ALLOW_PRIVATE": "true"}
    workers = [shell.start("worker", stage, **private) for stage in ("frontier", "fetcher", "parser")]
    workers.append(shell.start("worker", "exporter", "--out", "out", **private))
    assert "2 seeds accepted" in shell.run("seed", f"{site.url}/0", f"{site.url}/1", "--meta", '{"job": 7}')
    assert "2 seeds accepted" in feed(shell, f"{site.url}/2\n# a remark\n" + json.dumps({"url": f"{site.url}/x"}))
    wait_for(lambda: len(written(shell, "records")) == 3 and len(written(shell, "failures")) == 1, workers)
    assert {record["crawl"] for record in written(shell, "records")} == {"default"}
    assert [record["meta"] for record in written(shell, "records") if record["url"].endswith("/1")] == [{"job": 7}]
    assert site.requests["/3"] == 0, "the default crawl follows no links"
    status = json.loads(shell.run("status", "--json", "--kafka", bootstrap))
    assert [crawl["id"] for crawl in status["crawls"]] == ["default"]
    assert "default" in shell.run("status")
    for worker in workers:
        worker.terminate()
    for worker in workers:
        shell.end(worker)


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


def wait_for(condition, processes: Sequence[subprocess.Popen[str]], pause: float = 0.1) -> None:
    """Wait until `condition` holds, while all `processes` run."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        for process in processes:
            assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(pause)


def test_a_kafka_of_ones_own(shell, site, broker):
    site.pages = 7
    variables = {"FYKE_KAFKA_PREFIX": broker.prefix, "FYKE_KAFKA_BOOTSTRAP": broker.bootstrap}
    missing = shell.run("crawl", f"{site.url}/0", "--out", "out", expected=Exit.ENVIRONMENT, **variables)
    assert "fyke topics apply" in missing
    assert "made " in shell.run("topics", "apply", **variables)
    shell.run("crawl", f"{site.url}/0", "--out", "out", **variables)
    assert urls(shell.folder / "out") == whole(site)
    assert not (shell.state / "broker").exists()
    assert "ended exhausted" in " ".join(shell.run("status", **variables).split())
    refused = shell.run("crawl", f"{site.url}/0", "--kafka", "127.0.0.1:1", expected=Exit.ENVIRONMENT)
    assert "127.0.0.1:1" in refused


def test_a_crawl_is_paused_and_cancelled_by_another_hand(shell, site):
    site.pause = 0.05
    crawl = shell.start("crawl", f"{site.url}/0", "--name", "c", "--delay", "0.2", "--parallelism", "1")
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


def test_after_a_crawl_its_failures_are_explained_and_tried_again(shell, site):
    """The broker has stopped with the crawl: each command starts it for its own time."""
    site.pages = 6
    shell.run("crawl", f"{site.url}/0", f"{site.url}/7", "--name", "c")
    failure = printed(shell.run("failures", "--json"))
    assert [(one["url"], one["failure"]) for one in failure] == [(f"{site.url}/7", "http_status")]
    (why,) = printed(shell.run("why", f"{site.url}/7", "--json"))
    assert (why["crawl"], why["state"], why["status"], why["witness"]) == ("c", "failed", 404, "state")
    shell.run("failures", "--redrive", "--reopen", "--yes")
    site.pages = 8
    shell.run("resume", "c")
    urls = [json.loads(line)["url"] for line in (shell.folder / "fyke-out/c/records.jsonl").read_text().splitlines()]
    assert sorted(urls) == [f"{site.url}/{n}" for n in (*range(6), 7)]
    (resolved,) = printed(shell.run("failures", "--resolved", "--json"))  # and no other: it stands for the whole URL
    assert (resolved["url"], resolved["visit"], resolved["next"]["action"]) == (f"{site.url}/7", 1, "resolved")
