"""What a crawl wrote and what the server saw, compared with the expected sets: missing, unexpected, twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.sites.nginx import Request
from tests.sites.walk import HTML, Expected

SHOWN = 8


@dataclass(frozen=True, slots=True)
class Output:
    """The lines of an output folder."""

    records: list[dict[str, Any]]
    failures: list[dict[str, Any]]

    @property
    def pages(self) -> list[str]:
        """URLs of the records with an HTML type, in the order of the file."""
        return [record["url"] for record in self.records if is_html(record["content_type"])]


def is_html(content_type: str) -> bool:
    """Whether a content type, with or without parameters, is HTML or XHTML."""
    return content_type.partition(";")[0].strip().lower() in HTML


def read(out: Path) -> Output:
    """An output folder. A torn line is an error: a crawl that has ended leaves none."""
    return Output(_lines(out / "records.jsonl"), _lines(out / "failures.jsonl"))


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def exact_sets(output: Output, expected: Mapping[str, Expected]) -> None:
    """Assert that the lines are exactly what a walk of each site expects; `expected` by origin (`http://host[:port]`).

    Records: one for each page and for each file of another type; failures: one, final, of the first attempt, for each
    dead target; redirects: neither.
    """
    html = {origin + path for origin, site in expected.items() for path in site.html}
    other = {origin + path for origin, site in expected.items() for path in site.other}
    dead = {origin + path: status for origin, site in expected.items() for path, status in site.dead.items()}
    problems = [
        *_differences("HTML records", output.pages, html),
        *_differences("other records", (r["url"] for r in output.records if not is_html(r["content_type"])), other),
        *_differences("failures", (failure["url"] for failure in output.failures), dead.keys()),
        *(
            f"failure of {f['url']}: {f['failure']} {f['evidence']}, attempt {f['attempt']}, next {f['next']}"
            for f in output.failures
            if f["url"] in dead and not _is_answer(f, dead[f["url"]])
        ),
    ]
    assert not problems, "\n".join(problems[: 4 * SHOWN])


def _is_answer(failure: Mapping[str, Any], status: int) -> bool:
    """Whether a failure says: the server answered `status`, and that is final."""
    return (
        failure["failure"] == "http_status"
        and failure["evidence"].get("status") == status
        and failure["next"]["action"] == "none"
    )


def requests_once(requests: Iterable[Request], expected: Mapping[str, Expected], repeats: int = 0) -> None:
    """Assert that the server was asked for everything expected, once, and for nothing else but robots.txt.

    `expected` by host as in the log; `repeats`: how many requests may have been repeated (orders unanswered at kills).
    Requests that nginx could not read (400) stand in its log without host and path, and are left out.
    """
    seen = Counter(f"{r.host} {r.uri}" for r in requests if r.uri != "/robots.txt" and r.status != 400)
    wanted = {
        f"{host} {path}"
        for host, site in expected.items()
        for path in (*site.records, *site.dead, *site.redirects)
        if site.dead.get(path) != 400
    }
    problems = [*_missing("requests", seen.keys(), wanted), *_unexpected("requests", seen.keys(), wanted)]
    extra = seen.total() - len(seen)
    if extra > repeats:
        problems.append(f"requests: {extra} repeated, at most {repeats} expected: {_twice(seen)}")
    assert not problems, "\n".join(problems)


def repeats(requests: Iterable[Request]) -> int:
    """How many requests were not the first for their URL, robots.txt left out."""
    seen = Counter((request.host, request.uri) for request in requests if request.uri != "/robots.txt")
    return seen.total() - len(seen)


def gaps(requests: Iterable[Request]) -> dict[str, float]:
    """The shortest time in seconds between the starts of two requests, by host."""
    starts: dict[str, list[float]] = {}
    for request in requests:
        starts.setdefault(request.host, []).append(request.start)
    shortest = {}
    for host, times in starts.items():
        times.sort()
        if len(times) > 1:
            shortest[host] = min(later - earlier for earlier, later in pairwise(times))
    return shortest


def _differences(what: str, urls: Iterable[str], wanted: Iterable[str]) -> list[str]:
    seen, expected = Counter(urls), set(wanted)
    problems = [*_missing(what, seen.keys(), expected), *_unexpected(what, seen.keys(), expected)]
    if len(seen) != sum(seen.values()):
        problems.append(f"{what}: {sum(seen.values()) - len(seen)} twice: {_twice(seen)}")
    return problems


def _missing(what: str, seen: Iterable[str], wanted: set[str]) -> list[str]:
    missing = sorted(wanted - set(seen))
    return [f"{what}: {len(missing)} of {len(wanted)} missing: {missing[:SHOWN]}"] if missing else []


def _unexpected(what: str, seen: Iterable[str], wanted: set[str]) -> list[str]:
    unexpected = sorted(set(seen) - wanted)
    return [f"{what}: {len(unexpected)} unexpected: {unexpected[:SHOWN]}"] if unexpected else []


def _twice(seen: Counter[str]) -> list[str]:
    return [url for url, count in seen.most_common(SHOWN) if count > 1]
