"""`fyke` as a person runs it: child processes in a folder; and a site on loopback that counts its requests."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from streams.errors import Exit
from tests.suites import ROOT

PATIENCE = 120.0


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


@contextmanager
def counting(pages: int) -> Iterator[Site]:
    """Serve a site of so many pages during the block."""
    site = Site(pages)

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
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()


@dataclass
class Shell:
    """A folder to run `fyke` in, with a state folder of its own. Kills at the end what still runs."""

    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)
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
            env={**clean, **own, **self.variables, **variables},
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


@contextmanager
def shell_in(folder: Path, variables: Mapping[str, str]) -> Iterator[Shell]:
    shell = Shell(folder, variables)
    try:
        yield shell
    finally:
        for process in shell.running:
            if process.poll() is None:
                process.kill()
                process.communicate()


def wait_for(condition: Callable[[], object], processes: Sequence[subprocess.Popen[str]], pause: float = 0.1) -> None:
    """Wait until `condition` holds, while all `processes` run."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        for process in processes:
            assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(pause)
