"""What workers that have nothing to do cost: CPU of each `fyke worker STAGE` and of their broker, nothing happening.

Run: `python -m tests.bench.idle [SECONDS]`. Exit code 1 if a worker takes more than 3 % of a core.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from agents.io.broker import EmbeddedBroker
from agents.io.kraft import free_port
from streams.settings import Settings, to_environment

LIMIT = 3.0
"""Per cent of a core."""

STAGES = ("frontier", "fetcher", "parser", "exporter")
SETTLE = 5.0
PATIENCE = 120.0


def main(seconds: float) -> int:
    """Start everything, wait, look twice, and print the table."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings.model_validate({"worker": {"state": Path(folder)}, "export": {"out": Path(folder) / "out"}})
        broker = EmbeddedBroker(settings)
        bootstrap = broker.ensure()
        workers: dict[str, subprocess.Popen[bytes]] = {}
        try:
            _fyke(settings, bootstrap, "topics", "apply").wait(PATIENCE)
            ports = {stage: free_port() for stage in STAGES}
            for stage in STAGES:
                workers[stage] = _fyke(settings, bootstrap, "worker", stage, FYKE_WORKER_PORT=str(ports[stage]))
            for stage, port in ports.items():
                _wait_until_ready(workers[stage], port)
            time.sleep(SETTLE)
            pids = {"broker": broker.status().pid} | {stage: worker.pid for stage, worker in workers.items()}
            before = {name: _cpu(pid) for name, pid in pids.items()}
            began = time.monotonic()
            time.sleep(seconds)
            elapsed = time.monotonic() - began
            used = {name: _cpu(pid) - before[name] for name, pid in pids.items()}
        finally:
            for worker in workers.values():
                worker.terminate()
            for worker in workers.values():
                worker.wait(PATIENCE)
            broker.stop(force=True)
    print(f"idle for {elapsed:.1f} s\n{'process':<10}{'CPU s':>8}{'% of a core':>14}")
    for name, cpu in used.items():
        print(f"{name:<10}{cpu:>8.2f}{100 * cpu / elapsed:>14.2f}")
    return int(any(100 * used[stage] / elapsed > LIMIT for stage in STAGES))


def _fyke(settings: Settings, bootstrap: str, *arguments: str, **variables: str) -> subprocess.Popen[bytes]:
    own = to_environment(settings) | {"FYKE_KAFKA_BOOTSTRAP": bootstrap, "FYKE_WORKER_LOG": "warning"} | variables
    return subprocess.Popen((sys.executable, "-m", "agents.cli.main", *arguments), env=os.environ | own)


def _wait_until_ready(worker: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            if worker.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _cpu(pid: int) -> float:
    """User and system seconds of a process and its threads (proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 30.0))
