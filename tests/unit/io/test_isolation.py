from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agents.io import isolation
from agents.io.isolation import Child, ChildDied, Mark
from streams.messages import PageHeaders
from streams.page.parse import Limits
from tests.agents import poison

LIMITS = Limits(text=1000, links=100)
PAGE = PageHeaders(
    crawl="c", url="http://a.test/", fingerprint=bytes(range(16)), visit=1, shard=0, status=200, start=1, first_byte=2,
    headers=[("Content-Type", "text/html")], end=3, meta={"any": ["thing"]},
)  # fmt: skip


class TestMark:
    def test_a_cleared_mark_has_no_suspects(self, tmp_path: Path) -> None:
        mark = Mark(tmp_path, "parser", 4)
        mark.begin(2, 100)
        mark.clear()
        assert Mark(tmp_path, "parser", 4).suspects == {}

    def test_a_killed_process_leaves_what_it_had_begun(self, tmp_path: Path) -> None:
        code = (
            "import os, sys, signal; from pathlib import Path; from agents.io.isolation import Mark\n"
            "mark = Mark(Path(sys.argv[1]), 'parser', 4)\n"
            "mark.begin(2, 100); mark.begin(0, 0); mark.begin(2, 7)\n"
            "os.kill(os.getpid(), signal.SIGKILL)"
        )
        ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
        assert ended.returncode == -signal.SIGKILL
        mark = Mark(tmp_path, "parser", 4)
        assert mark.suspects == {0: 1, 2: 101}
        assert mark.is_suspect(2, 100)
        assert not mark.is_suspect(2, 101)
        assert not mark.is_suspect(1, 0)

    def test_living_workers_have_marks_of_their_own(self, tmp_path: Path) -> None:
        first, second = Mark(tmp_path, "parser", 4), Mark(tmp_path, "parser", 4)
        first.begin(0, 5)
        second.begin(1, 6)
        second.close()
        assert Mark(tmp_path, "parser", 4).suspects == {1: 7}
        first.close()
        assert Mark(tmp_path, "parser", 4).suspects == {0: 6}

    def test_suspects_stay_suspects_until_a_clean_stop(self, tmp_path: Path) -> None:
        mark = Mark(tmp_path, "parser", 4)
        mark.begin(0, 5)
        mark.close()
        Mark(tmp_path, "parser", 4).close()
        assert Mark(tmp_path, "parser", 4).suspects == {0: 6}

    def test_tries_are_counted_across_processes(self, tmp_path: Path) -> None:
        mark = Mark(tmp_path, "parser", 4)
        assert [mark.count_try(0, 5), mark.count_try(0, 5), mark.count_try(1, 5)] == [1, 2, 1]
        mark.close()
        mark = Mark(tmp_path, "parser", 4)
        assert (mark.tries(0, 5), mark.tries(1, 5), mark.tries(2, 5)) == (2, 1, 0)
        mark.forget_tries(0, 5)
        mark.forget_tries(3, 3)
        assert (mark.tries(0, 5), mark.tries(1, 5)) == (0, 1)
        mark.clear()
        assert Mark(tmp_path, "parser", 4).tries(1, 5) == 0

    def test_a_damaged_count_begins_again(self, tmp_path: Path) -> None:
        mark = Mark(tmp_path, "parser", 4)
        mark.count_try(0, 5)
        next(tmp_path.glob("*.tries")).write_bytes(b"{")
        assert mark.count_try(0, 5) == 1

    def test_there_is_an_end_to_marks(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(isolation, "_MAX_MARKS", 1)
        mark = Mark(tmp_path, "parser", 4)
        with pytest.raises(OSError, match="1 marks of parser are in use"):
            Mark(tmp_path, "parser", 4)
        mark.close()


@pytest.fixture
async def child() -> AsyncIterator[Child]:
    child = Child(f"{poison.__name__}:parse", 30.0, 30.0)
    yield child
    await child.stop()


class TestChild:
    async def test_parses_one_page_after_the_other(self, child: Child) -> None:
        for body, text in ((b"<p>one", "one"), (b"", ""), (b"<p>" + b"x" * 500_000, "x" * 1000)):
            assert await child.parse(PAGE, body, LIMITS) == poison.parse(PAGE, body, LIMITS)
            assert (await child.parse(PAGE, body, LIMITS)).text == text

    async def test_pages_of_several_partitions_take_turns(self, child: Child) -> None:
        await child.parse(PAGE, b"<p>warm", LIMITS)
        bodies = [b"<p>%d" % number for number in range(5)]
        parsed = await asyncio.gather(*(child.parse(PAGE, body, LIMITS) for body in bodies))
        assert [page.text for page in parsed] == ["0", "1", "2", "3", "4"]

    async def test_an_exception_is_told_and_the_child_lives(self, child: Child) -> None:
        with pytest.raises(ValueError, match="RuntimeError: no page of mine"):
            await child.parse(PAGE, poison.RAISE, LIMITS)
        process = child._process
        assert (await child.parse(PAGE, b"<p>next", LIMITS)).text == "next"
        assert child._process is process

    async def test_a_killed_child_is_replaced(self, child: Child) -> None:
        with pytest.raises(ChildDied, match="it ended with code -9"):
            await child.parse(PAGE, poison.KILL, LIMITS)
        assert (await child.parse(PAGE, b"<p>next", LIMITS)).text == "next"

    async def test_a_page_that_takes_too_long_is_a_death(self) -> None:
        child = Child(f"{poison.__name__}:parse", 1.0, 30.0)
        with pytest.raises(ChildDied, match="it took too long") as died:
            await child.parse(PAGE, poison.SLEEP, LIMITS)
        assert not died.value.final  # the machine may have been busy
        assert await child.stop() is None

    async def test_a_page_that_computes_without_end_would_do_so_again(self) -> None:
        child = Child(f"{poison.__name__}:parse", 30.0, 0.5)
        with pytest.raises(ChildDied, match=r"it computed for more than 0\.5 s") as died:
            await child.parse(PAGE, poison.SPIN, LIMITS)
        assert died.value.final
        assert (await child.parse(PAGE, b"<p>next", LIMITS)).text == "next"
        await child.stop()

    async def test_a_cancelled_page_does_not_answer_the_next(self, child: Child) -> None:
        await child.parse(PAGE, b"<p>warm", LIMITS)
        task = asyncio.create_task(child.parse(PAGE, poison.SLEEP, LIMITS))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await child.parse(PAGE, b"<p>next", LIMITS)).text == "next"


def test_a_process_that_computes_without_end_is_ended() -> None:
    code = "from agents.io.isolation import limit_computation as limit\nlimit(0.1)\nlimit(0.2)\nwhile True: pass"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGVTALRM
    spared = "from agents.io.isolation import limit_computation as limit\nlimit(0.05)\nlimit(0)\nsum(range(10**7))"
    assert subprocess.run([sys.executable, "-c", spared], check=False).returncode == os.EX_OK
