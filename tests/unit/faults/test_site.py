from __future__ import annotations

import re
from collections import Counter
from urllib.parse import urljoin

from streams.topics import shard_of
from tests.faults.site import Site, number_of

SITE = Site("small.test", seed=7, hosts=8, pages=200)


def test_is_the_same_each_time() -> None:
    again = Site("small.test", seed=7, hosts=8, pages=200)
    assert [SITE.body(3, n) for n in range(20)] == [again.body(3, n) for n in range(20)]
    assert SITE.expected() == again.expected()
    assert Site("small.test", seed=8, hosts=8, pages=200).seeds() != SITE.seeds()


def test_lies_in_all_shards() -> None:
    assert set(Counter(shard_of(name, 4) for name in SITE.names).values()) == {2}


def test_walk_finds_what_is_expected() -> None:
    """From the first pages alone, over links: every URL, each with its fate."""
    names = {name: number for number, name in enumerate(SITE.names)}
    todo = [f"http://{name}/p/0.html" for name in names]
    found = {}
    while todo:
        url = todo.pop()
        if url in found:
            continue
        host, _, path = url.removeprefix("http://").partition("/")
        status, fields, body = SITE.answer(names[host], f"/{path}")
        found[url] = (
            "excluded" if path.startswith("private/") else {200: "done", 302: "redirected", 404: "failed"}[status]
        )
        if status == 302:
            todo.append(urljoin(url, fields.split()[1]))
        if found[url] == "done":
            todo += [urljoin(url, link) for link in re.findall(r'href="([^"]*)"', body.decode())]
    assert found == SITE.expected()
    assert set(found.values()) == {"done", "failed", "redirected", "excluded"}


def test_seeds_are_of_the_site() -> None:
    seeds = SITE.seeds()
    assert len(set(seeds)) == len(seeds) > SITE.hosts
    assert set(seeds) <= SITE.expected().keys()


def test_number_of() -> None:
    paths = ("/p/7.html", "/p/07.html", "/p/200.html", "/p/x.html", "/robots.txt")
    assert [number_of(path, 200) for path in paths] == [7, None, None, None, None]
