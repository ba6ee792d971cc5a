"""CPU seconds of a command and everything it starts: exact totals from wait4, the broker's share apart.

    python -m tests.bench.accounting CORE TIMEOUT COMMAND…      prints the usage as JSON

The account is kept by a process of its own, so that it has no other children. A process that outlives its parent is
inherited by it (child subreaper), so that nothing escapes.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.suites import ROOT

TICKS = os.sysconf("SC_CLK_TCK")
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
LOOK = 0.1
"""Seconds between two looks at the broker: what it may use unseen at its very end."""


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU is user plus system."""

    code: int
    wall: float
    cpu: float  # of all processes but the broker, seconds
    broker: float  # of Java processes, seconds
    rss: int  # of the largest process, bytes


def measure(command: Sequence[str], log: Path, *, core: int, timeout: float) -> Usage:
    """Run a command on one core; its output goes to `log`. Killed with all it started at the time-out (seconds)."""
    account = [sys.executable, "-m", "tests.bench.accounting", str(core), str(timeout), *command]
    with log.open("ab") as output:
        process = subprocess.Popen(account, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=output, cwd=ROOT)
    try:
        told, _ = process.communicate()
    finally:
        process.terminate()  # harmless after its end; after an interruption it takes the command with it
        process.wait()
    return Usage(**json.loads(told))


def _account(command: Sequence[str], core: int, timeout: float) -> Usage:
    """`measure`, in the process of its own."""
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.signal(signal.SIGTERM, _give_up)
    started = time.monotonic()
    process = subprocess.Popen(["taskset", "-c", str(core), *command], stdout=sys.stderr, start_new_session=True)
    java: dict[tuple[int, int], float] = {}
    total, rss, code, wall = 0.0, 0, -1, 0.0
    while True:
        java |= _java_seconds()
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:  # all have ended
            return Usage(code, wall, total - sum(java.values()), sum(java.values()), rss)
        if pid:
            total += usage.ru_utime + usage.ru_stime
            rss = max(rss, usage.ru_maxrss * 1024)
        if pid == process.pid:
            code = process.returncode = os.waitstatus_to_exitcode(status)
            wall = time.monotonic() - started
        if not pid and time.monotonic() - started > timeout:
            _kill_all()
        time.sleep(0 if pid else LOOK)


def _kill_all() -> None:
    for pid in _below():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _give_up(*_: object) -> None:
    _kill_all()
    os._exit(1)


def _java_seconds() -> dict[tuple[int, int], float]:
    """CPU seconds so far of the Java processes below this one, by pid and start time."""
    return {
        (pid, int(fields[19])): (int(fields[11]) + int(fields[12])) / TICKS
        for pid, (name, fields) in _below().items()
        if name == "java"
    }


def _below() -> dict[int, tuple[str, list[str]]]:
    """Name, and the fields of /proc/PID/stat from the state on (proc(5)), of all processes below this one."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:  # it has ended
                continue
            found[int(entry.name)] = (
                text[text.index("(") + 1 : text.rindex(")")],
                text[text.rindex(")") + 2 :].split(),
            )
    return {pid: stat for pid, stat in found.items() if _descends(pid, found)}


def _descends(pid: int, processes: dict[int, tuple[str, list[str]]]) -> bool:
    while pid in processes:
        pid = int(processes[pid][1][1])
        if pid == os.getpid():
            return True
    return False


if __name__ == "__main__":
    print(json.dumps(asdict(_account(sys.argv[3:], int(sys.argv[1]), float(sys.argv[2])))))
