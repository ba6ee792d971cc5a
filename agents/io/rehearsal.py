"""The coding of a body that a process died of is undone in a process of its own first, which may die as well.

Only whether it survives is asked for; then the body is decoded as any other. So the second death of such a body costs
the start of a small process, not that of a worker, the wait until its group has noticed, and all it had in flight.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING, Final

from streams.page.decoding import Decoder

if TYPE_CHECKING:
    from agents.io.culprit import Culprit
    from streams.settings import Fetch

log = logging.getLogger(__name__)

COMMAND: tuple[str, ...] = (sys.executable, "-m", __name__)
"""What runs a rehearsal. Behind it: the coding, the bytes and the ratio at which it is cut; the body is its input."""

PATIENCE: Final = 60.0
"""Seconds for one rehearsal."""

_PIECE: Final = 64 * 1024


async def killed_by(coding: str, body: bytes, settings: Fetch) -> str:
    """What became of a process that undid the coding of `body`; empty if it survived."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND, coding, str(settings.max_body), str(settings.max_ratio),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with asyncio.timeout(PATIENCE):
            await process.communicate(body)
    except TimeoutError:
        return "it took too long"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return f"it ended with code {process.returncode}" if process.returncode else ""


def given_up(deaths: int, settings: Fetch) -> str:
    """Why a body of which so many processes died is decoded no more; empty if it may be."""
    return f"its body killed its decoder's process {deaths} times" if deaths >= settings.decode_tries else ""


async def rehearse(culprit: Culprit, url: str, coding: str, body: bytes, settings: Fetch) -> str:
    """Rehearse until a process survives; why the body is given up, empty if it is not. Each death is told."""
    deaths = culprit.deaths(url)
    while not (reason := given_up(deaths, settings)):
        died = await killed_by(coding, body, settings)
        if not died:
            return ""
        deaths += 1
        log.error("the body of %s killed the process in which it was decoded: %s", url, died)
        await culprit.died(url)
    return reason


def main() -> None:
    """`python -m agents.io.rehearsal CODING MAX_BODY MAX_RATIO`: undo the coding of the standard input."""
    coding, max_body, max_ratio = sys.argv[-3:]
    decoder = Decoder(coding, int(max_body), int(max_ratio))
    while not decoder.stopped and (piece := sys.stdin.buffer.read(_PIECE)):
        decoder.feed(piece)
    if not decoder.stopped:
        decoder.finish()


if __name__ == "__main__":
    main()
