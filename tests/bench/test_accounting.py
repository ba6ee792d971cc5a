"""The account: CPU of children, of processes that outlive their parent, and of Java apart."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.bench.accounting import measure

BURN = "import time\nwhile time.process_time() < 0.4: pass"


def test_children_and_orphans_are_counted(tmp_path: Path) -> None:
    orphan = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {BURN!r}], start_new_session=True)"
    usage = measure([sys.executable, "-c", f"{orphan}\n{BURN}\nsys.exit(3)"], tmp_path / "log", core=0, timeout=30)
    assert usage.code == 3
    assert 0.8 <= usage.cpu < 1.5
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
    assert usage.broker > 0.2
    assert usage.cpu < 0.3
