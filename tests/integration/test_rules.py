"""Rules that change while a crawl runs: `fyke rules` as processes, nginx's own log as the witness."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from agents.broadcast import Broadcast, publish
from agents.io.seeds import Writer
from streams.codecs import decode_inbox
from streams.definitions import LimitRule
from streams.errors import Exit
from streams.messages import FetchOutcome, Outcomes
from streams.settings import Settings, to_environment
from streams.topics import CRAWLS, INBOX
from tests.integration.service import ROOT, Client, crawls_of, processes, until
from tests.sites import nginx

pytestmark = [pytest.mark.alone, pytest.mark.broker, pytest.mark.site, pytest.mark.slow, pytest.mark.timeout(300)]

WITHIN = 2.0
"""Seconds after which a change must be obeyed."""
PAGES = 400
LATE = 0.3
"""Seconds by which the server of a busy machine reads one request later than the next: its log shows a shorter gap."""


async def fyke(settings: Settings, *arguments: str) -> tuple[int, str, str]:
    """Run `fyke` as a person does: exit code, output, errors."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "agents.cli.main", *arguments, cwd=ROOT, env=os.environ | to_environment(settings),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


def versions(client: Client) -> dict[int, float]:
    """When each version of crawl `c` came into the log: seconds by the broker's clock, this machine's."""
    return {
        msgspec.json.decode(record.value).get("version", 1): record.timestamp / 1000
        for record in client.log[CRAWLS.name]
        if record.key == b"c"
    }


def outcomes(client: Client) -> list[FetchOutcome]:
    """What the fetcher told of all its requests."""
    messages = (decode_inbox(record.value) for record in client.log[INBOX.name])
    items = (item for message in messages if isinstance(message, Outcomes) for item in message.items)
    return [item for item in items if isinstance(item, FetchOutcome)]


def gaps_of(starts: list[float]) -> list[tuple[float, float]]:
    """When each request but the first came (s), and how long after the one before."""
    return [(after, after - before) for before, after in pairwise(starts)]


async def test_a_change_is_obeyed_within_two_seconds(
    service: Settings, client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From 0.1 s to 1.2 s between requests by a rule, then back; counted from the definition's place in the log."""
    root = tmp_path / "root"
    root.mkdir()
    for number in range(PAGES):
        (root / f"{number}.html").write_text(f"<!doctype html><title>{number}</title>")
    slow, fast = tmp_path / "slow.toml", tmp_path / "fast.toml"
    slow.write_text('[[limits]]\nid = "slow"\ndomain = "127.0.0.1"\ndelay = 1.2\n')
    fast.write_text("limits = []\n")
    with nginx.serve({"a.test": root}, tmp_path / "nginx") as web, processes(service, tmp_path) as workers:
        workers.start("frontier", "fetcher", "parser")
        async with crawls_of(service) as define:
            await define("c", delay=0.1, parallelism=1, robots=False)
            seeds = [{"url": f"{web.origin}/{number}.html", "crawl": "c"} for number in range(PAGES)]
            await client.produce("urls", msgspec.json.encode(seeds))
            await until(lambda: len(web.requests()) >= 30, "the crawl does not begin")
            code, out, err = await fyke(service, "rules", "apply", "c", str(slow))
            assert (code, out) == (0, "crawl c: version 1 → 2\n  limits: 0 → 1 rules (+slow)\n"), err
            slowed = len(web.requests())
            await until(lambda: len(web.requests()) >= slowed + 6, "the crawl stands still")
            code, _, err = await fyke(service, "rules", "apply", "c", str(fast))
            assert code == 0, err
            quick = len(web.requests())
            await until(lambda: len(web.requests()) >= quick + 30, "the crawl stays slow")
        workers.check()
        starts = sorted(request.start for request in web.requests())
    await until(lambda: 3 in versions(client))
    second, third = versions(client)[2], versions(client)[3]
    gaps = gaps_of(starts)
    kept = gaps_of(sorted(request.start / 1000 for outcome in outcomes(client) for request in outcome.requests))
    assert all(gap >= (1.2 if second + WITHIN < at < third else 0.1) for at, gap in kept)
    assert sorted(gap for at, gap in gaps if at < second)[10] < 0.5
    short = [(round(at - second, 3), round(gap, 3)) for at, gap in gaps if gap < 1.2 - LATE and second < at < third]
    late = max((at for at, _ in short), default=0.0)
    assert late <= WITHIN, short
    again = min(at - third for at, gap in gaps if gap < 0.5 and at > third)
    with capsys.disabled():
        print(f"\nlonger delay obeyed {late:.2f} s, shorter one {again:.2f} s after the definition was in the log")
    assert again <= WITHIN


async def test_of_two_updates_at_once_one_wins_and_the_other_is_told(service: Settings, client: Client) -> None:
    async with crawls_of(service) as define:
        first = await define("c", delay=0.5)
    boards = [Broadcast(service.kafka.bootstrap, service) for _ in range(2)]
    async with Writer(service.kafka.bootstrap, service) as one, Writer(service.kafka.bootstrap, service) as other:
        await asyncio.gather(*(board.start() for board in boards))
        for turn in range(5):
            version = first.version + 1 + turn
            won = await asyncio.gather(*(
                publish(
                    board.crawls, msgspec.structs.replace(first, version=version, delay=delay), writer.send,
                    board.catch_up,
                )
                for board, writer, delay in zip(boards, (one, other), (turn + 1.0, turn + 2.0), strict=True)
            ))  # fmt: skip
            assert sorted(won) == [False, True]
            await asyncio.gather(*(board.catch_up() for board in boards))
            held = [board.crawls["c"] for board in boards]
            assert held[0] == held[1]
            assert held[0].delay == turn + 1.0 + won.index(True)
        await asyncio.gather(*(board.stop() for board in boards))


async def test_two_people_apply_rules_to_the_same_version(service: Settings, client: Client, tmp_path: Path) -> None:
    async with crawls_of(service) as define:
        await define("c", delay=0.5)
    files = [tmp_path / f"{number}.toml" for number in range(2)]
    for number, file in enumerate(files):
        file.write_text(f"delay = {number + 1}\nconcurrency = {number + 10}\n")
    results = await asyncio.gather(*(
        fyke(service, "rules", "apply", "c", str(file), "--version", "1") for file in files
    ))  # fmt: skip
    assert sorted(code for code, _, _ in results) == [0, Exit.CONFLICT]
    winner = next(number for number, (code, _, _) in enumerate(results) if code == 0)
    _, _, told = results[1 - winner]
    assert told.startswith("fyke: conflict: the crawl c ")
    assert "Version 2 by " in told
    assert "apply yours to it: --version 2" in told
    code, shown, _ = await fyke(service, "rules", "show", "c", "--json")
    definition = json.loads(shown)["definition"]
    assert (code, definition["version"]) == (0, 2)
    assert (definition["delay"], definition["concurrency"]) == (winner + 1, winner + 10)
    code, _, err = await fyke(service, "rules", "apply", "c", str(files[1 - winner]), "--version", "2")
    assert code == 0, err


async def test_shows_tests_and_tries_rules(service: Settings, client: Client, tmp_path: Path) -> None:
    """A dry run on what was ordered, and what is refused."""
    root = tmp_path / "root"
    (root / "api").mkdir(parents=True)
    names = [f"{number}.html" for number in range(6)] + [f"api/{number}.html" for number in range(4)]
    for name in names:
        (root / name).write_text("<!doctype html><title>x</title>")
    file = tmp_path / "new.toml"
    file.write_text('[[limits]]\nid = "api"\npath = "/api/"\ndelay = 3\n\n[[limits]]\nid = "bad"\ndomain = "x"\n')
    with nginx.serve({"a.test": root}, tmp_path / "nginx") as web, processes(service, tmp_path) as workers:
        workers.start("frontier", "fetcher", "parser")
        async with crawls_of(service) as define:
            await define("c", robots=False, limits=(LimitRule(id="broken", regex="("),))
            await client.produce("urls", msgspec.json.encode([f"{web.origin}/{names[0]}"]))
            await client.produce(
                "urls", msgspec.json.encode([{"url": f"{web.origin}/{name}", "crawl": "c"} for name in names])
            )
            await until(lambda: len(client.records("c")) == len(names), "the crawl does not end")
            await until(client.failures, "nobody is told that a rule matches nothing")
        workers.check()
    (failure,) = client.failures()
    assert failure["reason"].startswith("rule broken matches nothing: the regular expression '('")
    code, out, err = await fyke(service, "rules", "dry-run", "c", str(file))
    assert code == 0, err
    assert out.startswith("4 of the last 10 orders would have been different\n        4  delay: 0 → 3\n")
    assert "        4  api\n" in out
    code, out, _ = await fyke(service, "rules", "show", "c")
    assert (code, out.splitlines()[0]) == (0, "# crawl c, version 1, open")
    assert "# rule broken matches nothing: the regular expression '(' cannot be used" in out
    code, out, _ = await fyke(service, "rules", "test", f"{web.origin}/api/0.html", "--crawl", "c")
    assert (code, "no: the regular expression" in out, "no rule applies" in out) == (0, True, True)
    file.write_text("[keys]\nsort_query = true\n")
    code, _, err = await fyke(service, "rules", "apply", "c", str(file))
    assert (code, "keys cannot be changed" in err) == (Exit.USAGE, True)
    code, _, err = await fyke(service, "rules", "show", "nobody")
    assert (code, "knows no crawl nobody" in err) == (Exit.USAGE, True)
