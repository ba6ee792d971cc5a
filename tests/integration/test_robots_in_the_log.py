"""robots.txt as the server sees it: what is forbidden is not asked for, not even once."""

from __future__ import annotations

import pytest

from agents.io.admin import Admin
from streams.frontier import robots
from streams.policy.retry import PROBE_BUDGET, Patience
from streams.settings import Settings
from streams.topics import FAILURES, PROGRESS, URLS
from tests.integration.service import Client, Site, crawls_of, ends, running, until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]


def exclusions(client: Client, crawl: str) -> dict[str, int]:
    """How many URLs each rule kept out of a crawl, as the shards published it last."""
    shards = {progress["shard"]: progress.get("crawls", {}).get(crawl, {}) for progress in client.json(PROGRESS.name)}
    total: dict[str, int] = {}
    for counts in shards.values():
        for rule, number in counts.get("exclusions", {}).items():
            total[rule] = total.get(rule, 0) + number
    return total


async def crawl(service: Settings, client: Client, *seeds: str, **fields: object) -> None:
    """Crawl from the seeds to the end."""
    async with (
        crawls_of(service) as define,
        Admin(service.kafka.bootstrap, service) as admin,
        running(service),
    ):
        await define("c", **fields)
        for url in seeds:
            await client.seed(url=url, crawl="c")
        await define("c", state="sealed", seal=await admin.end_offsets(URLS.name))
        await until(lambda: ends(client, "c"), "the crawl does not end")


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for a failing robots.txt again after 10 ms instead of two seconds; it doubles with each probe."""
    monkeypatch.setattr(robots, "patience", lambda *_: Patience(robots=0.01, hold=60.0))


async def test_a_forbidden_folder_is_never_asked_for(web: Site, service: Settings, client: Client) -> None:
    web.robots = "User-agent: *\nDisallow: /\n\nUser-agent: fyke\nDisallow: /private/\nDisallow: /*.pdf$\n"
    forbidden = ["/private/a", "/private/b?c", "/priva%74e/d", "/x.pdf"]
    allowed = ["/public/a", "/private", "/x.pdf?page=2"]
    web.links = {"/": [*forbidden, *allowed], "/public/a": ["/private/deeper"]}
    await crawl(service, client, f"{web.url}/", f"{web.url}/private/seed")
    assert web.asked == dict.fromkeys(["/", *allowed], 1)
    assert web.requests[0][0] == "/robots.txt"
    assert [path for path, _ in web.requests].count("/robots.txt") == 1
    assert exclusions(client, "c") == {"robots": 6}
    assert not client.log[FAILURES.name]


async def test_without_robots_everything_is_asked_for(web: Site, service: Settings, client: Client) -> None:
    """That the folder stays untouched above is the doing of robots.txt."""
    web.robots = "User-agent: *\nDisallow: /private/\n"
    await crawl(service, client, f"{web.url}/private/seed", robots=False)
    assert [path for path, _ in web.requests] == ["/private/seed"]


async def test_an_unreachable_robots_txt_holds_and_then_gives_up(
    web: Site, service: Settings, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch)
    web.robots = 503
    await crawl(service, client, f"{web.url}/a", f"{web.url}/b")
    assert [path for path, _ in web.requests] == ["/robots.txt"] * PROBE_BUDGET
    failures = client.failures("host_unreachable")
    assert sorted(failure["url"] for failure in failures) == [f"{web.url}/a", f"{web.url}/b"]
    assert {failure["attempt"] for failure in failures} == {0}, "what is held uses no attempts"
    assert {failure["evidence"]["robots"] for failure in failures} == {f"{web.url}/robots.txt"}


async def test_a_robots_txt_that_comes_back_lets_the_crawl_go_on(
    web: Site, service: Settings, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch)
    web.robots = 503
    answer = web.answer

    def recovering(path: str) -> tuple[int, str, bytes]:
        if [asked for asked, _ in web.requests].count("/robots.txt") == 3:
            web.robots = "User-agent: *\nDisallow: /b\n"
        return answer(path)

    monkeypatch.setattr(web, "answer", recovering)
    await crawl(service, client, f"{web.url}/a", f"{web.url}/b")
    assert [path for path, _ in web.requests] == ["/robots.txt"] * 3 + ["/a"]
    assert exclusions(client, "c") == {"robots": 1}
    assert not client.log[FAILURES.name]
