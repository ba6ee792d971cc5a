"""4,231 real robots.txt files, and URLs near the rules of each."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from random import Random

from streams.policy import urls
from tests import suites

SOURCE = "protego==0.7.0"
"""Its source distribution carries the files."""

SAMPLED = 50
"""URLs that are asked about each file."""

PATHS = re.compile(rb"^[ \t]*(?:dis)?allow[ \t]*:[ \t]*([^#\r\n]*)", re.IGNORECASE | re.MULTILINE)
RULES = 40
PLAIN = ("/index.html", "/a", "/a/b?c=d", "/robots", "/search?q=x", "/images/a.png", "/%7Eu/", "/a.pdf", "/wp-admin/",
         "/de/", "/*", "/$")  # fmt: skip
WORDS = ("a", "page", "news", "2024", "x.html", "tag")


def real_files() -> Iterator[tuple[str, bytes]]:
    """Host and body of each. Skips (or fails) where the distribution is not to be had."""
    folder = suites.cache() / "robots"
    archive = folder / "protego-0.7.0.tar.gz"
    if not archive.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "protego", SOURCE]
        done = subprocess.run(
            [*command, "--dest", str(folder)], capture_output=True, text=True, check=False, timeout=50
        )
        if not archive.exists():
            suites.absent(f"source distribution of {SOURCE}", done.stderr.strip().rpartition("\n")[2] or "no answer")
    with tarfile.open(archive) as files:
        for member in files:
            content = files.extractfile(member) if "/tests/test_data/" in member.name else None
            if content is not None:
                yield member.name.rpartition("/")[2], content.read()


def sample(host: str, body: bytes) -> list[str]:
    """URLs a file may have an opinion on, the same in every run.

    The front page, folders of index pages, and by chance: its rules with stars filled or dropped, cut, longer, in
    capitals, below another folder; plain paths. Not /robots.txt, which is always allowed, as the RFC says.
    """
    dice = Random(host)
    rules = [path.strip().decode("utf-8", "replace") for path in PATHS.findall(body)]
    first = ["/", *[rule.removesuffix("index.html") for rule in rules if rule.endswith("/index.html")][:3]]
    near = {path for rule in dice.sample(rules, min(len(rules), RULES)) for path in _near(rule)} | set(PLAIN)
    while len(near) < 2 * SAMPLED:
        near.add("/" + "/".join(dice.choices(WORDS, k=dice.randint(1, 4))) + str(len(near)))
    paths = [*first, *dice.sample(sorted(near), len(near))]
    found = dict.fromkeys(urls.parse("http://example.org/" + path.removeprefix("/")) for path in paths)
    return [url for url in found if url and not url.endswith("/robots.txt")][:SAMPLED]


def _near(rule: str) -> tuple[str, ...]:
    stem = rule.removesuffix("$")
    if stem[:1] not in ("/", "*"):
        return ()
    filled = stem.replace("*", "x")
    return (filled, filled + "/a", filled + "?q=1", filled[:-1], filled.upper(), "/b" + filled,
            stem.replace("*", ""), stem.replace("*", "a/b") + ".html")  # fmt: skip
