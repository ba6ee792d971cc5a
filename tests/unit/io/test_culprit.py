"""The body that killed its process is known to the next one, and no other body is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agents.io.culprit import Culprit

URL = "http://a.test/bomb?\u00e9"
DIE = """
import os, signal, sys
from pathlib import Path
from agents.io.culprit import Culprit
culprit = Culprit(Path(sys.argv[1]), "fetcher")
with culprit.decoding("http://a.test/harmless"):
    pass
with culprit.decoding("http://a.test/longer/than/the/other"):
    pass
if sys.argv[2]:
    with culprit.decoding(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGSEGV)
os.kill(os.getpid(), signal.SIGKILL)
"""


def die(folder: Path, url: str = "") -> None:
    """Run and kill a process that decodes two harmless bodies, then `url`'s."""
    assert subprocess.run([sys.executable, "-c", DIE, str(folder), url], check=False).returncode < 0


def test_what_was_decoded_at_the_death_is_found_and_counted(tmp_path: Path) -> None:
    for deaths in (1, 2, 3):
        die(tmp_path, URL)
        culprit = Culprit(tmp_path, "fetcher")
        assert culprit.found == URL
        assert culprit.deaths(URL) == deaths
        assert culprit.deaths("http://a.test/harmless") == 0
        culprit._hold.drop()  # it dies, too, of something else


def test_a_death_between_two_bodies_accuses_nobody(tmp_path: Path) -> None:
    die(tmp_path)
    assert Culprit(tmp_path, "fetcher").found == ""


def test_the_next_death_of_another_kind_is_not_counted_again(tmp_path: Path) -> None:
    die(tmp_path, URL)
    Culprit(tmp_path, "fetcher")._hold.drop()
    again = Culprit(tmp_path, "fetcher")
    assert (again.found, again.deaths(URL)) == ("", 1)


def test_a_clean_stop_ends_the_count(tmp_path: Path) -> None:
    die(tmp_path, URL)
    Culprit(tmp_path, "fetcher").clear()
    assert Culprit(tmp_path, "fetcher").deaths(URL) == 0


def test_living_workers_have_files_of_their_own(tmp_path: Path) -> None:
    first, second = Culprit(tmp_path, "fetcher"), Culprit(tmp_path, "fetcher")
    with first.decoding(URL):
        assert second._named() == ""
        assert first._named() == URL
    assert first._named() == ""


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]"])
def test_a_damaged_count_begins_again(damage: bytes, tmp_path: Path) -> None:
    (tmp_path / "fetcher-0.deaths").write_bytes(damage)
    assert Culprit(tmp_path, "fetcher").deaths(URL) == 0


def test_an_endless_url_is_cut(tmp_path: Path) -> None:
    culprit = Culprit(tmp_path, "fetcher")
    with culprit.decoding("http://a.test/" + "x" * 100_000):
        assert culprit._named().startswith("http://a.test/xxx")
