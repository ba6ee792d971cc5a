from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agents.io.locks import Hold, exclusive, is_held


def test_one_holds_it_at_a_time(tmp_path: Path) -> None:
    first = Hold.take(tmp_path / "lock")
    assert first is not None
    assert Hold.take(tmp_path / "lock") is None
    first.drop()
    first.drop()
    second = Hold.take(tmp_path / "lock")
    assert second is not None
    second.drop(remove=True)
    assert not (tmp_path / "lock").exists()


def test_it_ends_with_the_process_and_children_do_not_inherit_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = (
        "import subprocess, sys; from pathlib import Path; from agents.io.locks import Hold\n"
        f"hold = Hold.take(Path({str(path)!r})); subprocess.Popen(['sleep', '30'], close_fds=False, stdout=2)\n"
        "print(hold is not None, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"True\n"
        assert Hold.take(path) is None
        holder.kill()
        holder.wait()
        hold = Hold.take(path)
        assert hold is not None
        hold.drop()


def test_who_waits_is_told_once_and_not_for_ever(tmp_path: Path) -> None:
    told: list[str] = []
    with (
        exclusive(tmp_path / "lock", 1.0, lambda: told.append("first")),
        pytest.raises(TimeoutError),
        exclusive(tmp_path / "lock", 0.15, lambda: told.append("second")),
    ):
        pytest.fail("two hold it")
    assert told == ["second"]
    with exclusive(tmp_path / "lock", 0.0, lambda: told.append("third")):
        pass
    assert told == ["second"]


def test_a_look_takes_no_lock_and_makes_no_file(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_held(path)
    assert not path.exists()
    hold = Hold.take(path)
    assert hold is not None
    assert is_held(path)
    hold.drop()
    assert not is_held(path)
