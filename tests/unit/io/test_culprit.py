"""The body that killed its process is known to the next one, and no other body is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from agents.io.culprit import Culprit

URL = "http://a.test/bomb?\u00e9"
DIE = """
import os, signal, sys
from pathlib import Path
from agents.io.culprit import Culprit
culprit = Culprit(Path(sys.argv[1]), "fetcher", lambda _: 0, None)
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


async def unheard(url: str) -> None:
    raise AssertionError(f"{url} killed nobody")


def culprit_of(folder: Path) -> Culprit:
    return Culprit(folder, "fetcher", lambda _: 0, unheard)


def test_what_was_decoded_at_the_death_is_found_until_it_is_told(tmp_path: Path) -> None:
    die(tmp_path, URL)
    for _ in range(2):
        culprit = culprit_of(tmp_path)
        assert culprit.found == URL
        culprit._hold.drop()  # it dies, too, before it has told
    culprit = culprit_of(tmp_path)
    culprit.told()
    culprit._hold.drop()
    assert culprit_of(tmp_path).found == ""


def test_a_death_between_two_bodies_accuses_nobody(tmp_path: Path) -> None:
    die(tmp_path)
    assert culprit_of(tmp_path).found == ""


def test_living_workers_have_files_of_their_own(tmp_path: Path) -> None:
    first, second = culprit_of(tmp_path), culprit_of(tmp_path)
    with first.decoding(URL):
        assert second._named() == ""
        assert first._named() == URL
    assert first._named() == ""


def test_an_endless_url_is_cut(tmp_path: Path) -> None:
    culprit = culprit_of(tmp_path)
    with culprit.decoding("http://a.test/" + "x" * 100_000):
        assert culprit._named().startswith("http://a.test/xxx")
