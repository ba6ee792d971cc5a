"""What the fault tests crawl: the same real site under many host names, and a small one made of numbered pages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.sites import debian, nginx, walk
from tests.sites.walk import Expected

SITE = debian.POSTGRESQL


def many_hosts(names: tuple[str, ...]) -> dict[str, Path]:
    """`names` as nginx serves them: the same folder under each."""
    return dict.fromkeys(names, debian.root_of(SITE))


def seeds(names: tuple[str, ...]) -> list[str]:
    """The start page of each host."""
    return [f"http://{name}{SITE.start}" for name in names]


def expected_by_origin(names: tuple[str, ...]) -> dict[str, Expected]:
    """For `asserts.exact_sets`."""
    return {f"http://{name}": walk.expected(SITE) for name in names}


def expected_by_host(names: tuple[str, ...]) -> dict[str, Expected]:
    """For `asserts.requests_once`."""
    return dict.fromkeys(names, walk.expected(SITE))


def pages(web: nginx.Web, host: str = "") -> int:
    """Requests answered so far, of one host or of all, robots.txt left out."""
    return sum(request.uri != "/robots.txt" and host in ("", request.host) for request in web.requests())


def reached(web: nginx.Web, count: int, host: str = "") -> Callable[[], bool]:
    """The condition that so many pages are fetched."""
    return lambda: pages(web, host) >= count


def numbered(folder: Path, count: int) -> Path:
    """A site of `count` pages: `/index.html` leads to all others."""
    folder.mkdir(parents=True, exist_ok=True)
    links = "".join(f'<a href="/{number}.html">{number}</a>' for number in range(1, count))
    (folder / "index.html").write_text(f"<!doctype html><title>index</title>{links}")
    for number in range(1, count):
        (folder / f"{number}.html").write_text(f"<!doctype html><title>{number}</title>")
    return folder
