"""A worker whose native code has two bugs: `python -m tests.faults.doomed worker STAGE`, otherwise as installed.

Some pages kill whoever parses them, some bodies kill whoever decodes them; both by SIGKILL in the middle of the call,
as a crash in C would end it. Which ones depends on their title, so that every process, the parser's child too, agrees.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from typing import Any
from zlib import crc32

from agents import parser
from agents.io import rehearsal
from streams.messages import PageHeaders
from streams.page.decoding import Decoder
from streams.page.parse import Limits, ParsedPage

_TITLE = re.compile(rb"<title>(\S+) (\d+)</title>")
_decode = Decoder.feed
REHEARSE = "rehearse"


def kills_parser(host: str, number: int) -> bool:
    """Whether a page of the site kills its parser: number 98 on about every other host."""
    return number == 98 and not crc32(host.encode()) % 2


def kills_decoder(host: str, number: int) -> bool:
    """Whether its body kills the decoder: number 99 on about every fourth host."""
    return number == 99 and not crc32(host.encode()) % 4


def parse(page: PageHeaders, body: bytes, limits: Limits) -> ParsedPage:
    """As `agents.parser.parse`."""
    if (found := _TITLE.search(body)) and kills_parser(found[1].decode(), int(found[2])):
        os.kill(os.getpid(), signal.SIGKILL)
    return parser.parse(page, body, limits)


def _feed(decoder: Decoder, chunk: bytes) -> bytes:
    piece = _decode(decoder, chunk)
    if (found := _TITLE.search(piece)) and kills_decoder(found[1].decode(), int(found[2])):
        os.kill(os.getpid(), signal.SIGKILL)
    return piece


def main() -> None:
    """The command line, with the bugs."""
    from agents.cli.main import main as fyke

    Decoder.feed = _feed  # type: ignore[method-assign,assignment]  # that is the bug
    if sys.argv[1] == REHEARSE:
        rehearsal.main()
        return
    rehearsal.COMMAND = (sys.executable, "-m", "tests.faults.doomed", REHEARSE)
    defaults: Any = parser.ParserStage.__init__.__kwdefaults__
    defaults["function"] = "tests.faults.doomed:parse"
    sys.argv[0] = "fyke"
    fyke()


if __name__ == "__main__":
    main()
