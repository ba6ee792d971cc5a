"""The account: CPU of children, of processes that outlive their parent, and of Java apart."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bench.accounting import measure
from tests.suites import ROOT

BURN = "import time\nwhile time.process_time() < 0.4: pass"


def test_children_and_orphans_are_counted(tmp_path: Path) -> None:
    orphan = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {BURN!r}], start_new_session=True)"
    usage = measure([sys.executable, "-c", f"{orphan}\n{BURN}\nsys.exit(3)"], tmp_path / "log", core=0, timeout=30)
    assert usage.code == 3
    assert 0.8 <= usage.cpu < 2
    assert usage.broker == 0


def test_it_ends_at_the_time_out(tmp_path: Path) -> None:
    usage = measure([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "log", core=0, timeout=0.5)
    assert usage.code == -9
    assert usage.wall < 10


def test_java_is_apart(tmp_path: Path) -> None:
    java = tmp_path / "java"  # the name of the process is what counts
    shutil.copy(shutil.which("yes") or pytest.skip("no `yes` here"), java)
    command = ["timeout", "1", "sh", "-c", f"{java} > /dev/null"]
    usage = measure(command, tmp_path / "log", core=0, timeout=30)
    assert usage.broker > 0.05  # of one second, on a machine that may be busy
    assert usage.cpu < 0.3


def test_it_leaves_nothing_behind_when_it_is_ended(tmp_path: Path) -> None:
    mark = str(tmp_path / "mark")
    sleeper = [sys.executable, "-c", f"import time; open({mark!r}, 'w').close(); time.sleep(60)"]
    account = [sys.executable, "-m", "tests.bench.accounting", "0", "60", *sleeper]
    process = subprocess.Popen(account, cwd=ROOT, stdout=subprocess.DEVNULL)
    wait_for(Path(mark).exists)
    process.terminate()
    process.wait(timeout=10)
    wait_for(lambda: not running(mark))


def running(mark: str) -> bool:
    def command(entry: Path) -> str:
        try:
            return (entry / "cmdline").read_text(errors="replace")
        except OSError:
            return ""

    return any(mark in command(entry) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
