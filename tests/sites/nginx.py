"""A real nginx on a free loopback port: folders under host names, and a log from which requests can be counted.

    with nginx.serve({"a.test": root, "b.test": root}, folder) as web:
        ...  web.port, web.requests()

The first host also answers to every other name, so `http://127.0.0.1:PORT/` reaches it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.sites import debian
from tests.suites import absent

LOG = (
    '{"end":$msec,"took":$request_time,"host":"$host","uri":"$request_uri","status":$status,'
    '"bytes":$body_bytes_sent,"agent":"$http_user_agent","connection":$connection}'
)


@dataclass(frozen=True, slots=True)
class Request:
    """One line of the access log; times in seconds since the epoch, to the millisecond."""

    start: float
    end: float
    host: str
    uri: str
    status: int
    agent: str
    connection: int


@dataclass(frozen=True, slots=True)
class Web:
    """A running server."""

    port: int
    hosts: tuple[str, ...]
    log: Path
    pid: int

    @property
    def origin(self) -> str:
        """Of the first host, by address."""
        return f"http://127.0.0.1:{self.port}"

    def connect_to(self) -> list[str]:
        """Arguments for `fyke crawl`: port 80 of every host name is this server."""
        return [part for host in self.hosts for part in ("--connect-to", f"{host}:80:127.0.0.1:{self.port}")]

    def requests(self) -> list[Request]:
        """All requests so far, in the order in which they ended."""
        return [_request(line) for line in self.log.read_text(encoding="utf-8").splitlines()]


def _request(line: str) -> Request:
    entry = json.loads(line)
    return Request(
        start=round(entry["end"] - entry["took"], 3),
        end=entry["end"],
        host=entry["host"],
        uri=entry["uri"],
        status=entry["status"],
        agent=entry["agent"],
        connection=entry["connection"],
    )


@cache
def binary() -> Path:
    """The nginx on PATH, else the one of its Debian package, unpacked. Skips (or fails) where neither is to be had."""
    found = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    path = Path(found) if found else debian.package("nginx").folder / "usr/sbin/nginx"
    if subprocess.run([path, "-v"], capture_output=True, check=False).returncode:
        absent("nginx", f"{path} does not start here")
    return path


@cache
def mime_types() -> Path:
    """The list of content types that belongs to that nginx."""
    installed = Path("/etc/nginx/mime.types")
    return installed if installed.exists() else debian.package("nginx-common").folder / "etc/nginx/mime.types"


@contextmanager
def serve(
    sites: Mapping[str, Path], folder: Path, *, robots: Mapping[str, str] | None = None, core: int | None = None
) -> Iterator[Web]:
    """Serve each root under its host name until the block ends.

    `folder` takes configuration and logs; `robots`: robots.txt by host (without: what the site has);
    `core`: the processor to run on.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "access.log"
    log.touch()
    for _ in range(5):  # the port found free may be taken before nginx binds it
        port = free_port()
        (folder / "nginx.conf").write_text(_configuration(sites, folder, robots or {}, port), encoding="utf-8")
        process = _start(folder, core)
        if _answers(process, port):
            break
    else:
        raise AssertionError((folder / "error.log").read_text(encoding="utf-8"))
    try:
        yield Web(port, tuple(sites), log, process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=10)


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(folder: Path, core: int | None) -> subprocess.Popen[bytes]:
    pin = ["taskset", "-c", str(core)] if core is not None else []
    with (folder / "error.log").open("ab") as errors:
        return subprocess.Popen(
            [*pin, binary(), "-c", folder / "nginx.conf", "-p", folder],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
        )


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return True
        time.sleep(0.02)
    return False


def _configuration(sites: Mapping[str, Path], folder: Path, robots: Mapping[str, str], port: int) -> str:
    servers = "".join(_server(host, root, folder, robots.get(host), port) for host, root in sites.items())
    scratch = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in ("proxy", "fastcgi", "uwsgi", "scgi"))
    # As root the worker would otherwise become a user who may not read the cache folder.
    user = "user root;" if os.geteuid() == 0 else ""
    return f"""daemon off; {user} worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log warn;
worker_rlimit_nofile 16384;
events {{ worker_connections 4096; }}
http {{
 include {mime_types()}; default_type application/octet-stream;
 log_format lines escape=json '{LOG}'; access_log {folder}/access.log lines;
 sendfile on; tcp_nopush on; gzip off; keepalive_timeout 600; keepalive_requests 100000000;
 open_file_cache max=40000 inactive=600s; server_names_hash_bucket_size 128;
 absolute_redirect off; client_body_temp_path {folder}/body; {scratch}
{servers}}}
"""


def _server(host: str, root: Path, folder: Path, robots: str | None, port: int) -> str:
    rules = ""
    if robots is not None:
        file = folder / f"robots-{host}.txt"
        file.write_text(robots, encoding="utf-8")
        rules = f"location = /robots.txt {{ alias {file}; }}"
    return f' server {{ listen 127.0.0.1:{port}; server_name {host}; root "{root}"; index index.html; {rules} }}\n'
