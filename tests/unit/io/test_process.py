from __future__ import annotations

import os
import subprocess
import time

from agents.io import process


def test_a_process_has_an_identity_until_it_has_ended() -> None:
    own = process.identity(os.getpid())
    with subprocess.Popen(["sleep", "30"]) as child:
        seen = process.identity(child.pid)
        assert seen not in {"", own}
        assert process.identity(child.pid) == seen
        child.kill()
        deadline = time.monotonic() + 30
        while process.identity(child.pid):  # a zombie now: nobody has waited for it
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert process.identity(child.pid) == ""
    assert process.resident(child.pid) == 0
    assert process.uptime(child.pid) == 0.0


def test_size_and_age_are_in_bytes_and_seconds() -> None:
    assert 5e6 < process.resident(os.getpid()) < 5e9
    with subprocess.Popen(["sleep", "30"]) as child:
        assert -0.1 <= process.uptime(child.pid) < 5
        child.kill()
