"""A parse function for tests: some bodies kill, stop or fail the process that parses them."""

from __future__ import annotations

import os
import signal
import time

from agents import parser
from streams.messages import PageHeaders
from streams.page.parse import Limits, ParsedPage

KILL = b"<p>kill"
KILL_ONCE = b"<p>once:"
SLEEP = b"<p>sleep"
SPIN = b"<p>spin"
RAISE = b"<p>raise"


def parse(page: PageHeaders, body: bytes, limits: Limits) -> ParsedPage:
    """As `agents.parser.parse`, but for the bodies above. KILL_ONCE is followed by the path of a file it leaves."""
    if body.startswith(KILL):
        os.kill(os.getpid(), signal.SIGKILL)
    if body.startswith(KILL_ONCE):
        try:
            os.close(os.open(body.removeprefix(KILL_ONCE), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass
        else:
            os.kill(os.getpid(), signal.SIGSEGV)
    if body.startswith(SLEEP):
        time.sleep(60)
    while body.startswith(SPIN):
        pass
    if body.startswith(RAISE):
        raise RuntimeError("no page of mine")
    print("a library prints")
    return parser.parse(page, body, limits)
