"""Bodies on their way in: what is kept of them, how they are cut, and how much memory all of them take."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aiohttp import ClientPayloadError, http_exceptions

from streams.page.decoding import Decoder

if TYPE_CHECKING:
    from streams.messages import FailureClass, TruncationReason
    from streams.settings import Fetch


@dataclass(slots=True)
class Holder:
    """Somebody who holds bytes of the budget."""

    held: int = 0


class Budget:
    """One limit for all bodies in flight.

    Where it is used up, who needs more waits until somebody gives back. So that bodies that wait for each other cannot
    stand still, one of them may always go on beyond the limit: by one body at most.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._favoured: Holder | None = None
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def used(self) -> int:
        """Bytes held."""
        return self._used

    async def take(self, holder: Holder, size: int) -> None:
        """Hold `size` more bytes for `holder`; waits where there are none."""
        while self._used + size > self._limit and self._favoured not in (None, holder):
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        if self._used + size > self._limit:
            self._favoured = holder
        self._used += size
        holder.held += size

    def give(self, holder: Holder) -> None:
        """Give back all that `holder` holds."""
        self._used -= holder.held
        holder.held = 0
        if self._favoured is holder:
            self._favoured = None
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


WITHOUT_BODY: Final[dict[TruncationReason, FailureClass]] = {
    "length": "too_large", "time": "timeout", "disconnect": "incomplete", "decode": "decode", "protocol": "protocol",
}  # fmt: skip
"""What is left to say of a body that is cut, if nothing of it was received."""


class Body:
    """A body on its way in: its pieces, decoded, within limits.

    `coding`: the value of `Content-Encoding`, "" to take the bytes as they come. `max_body`: bytes to keep. `decoding`:
    what each piece is decoded in.
    """

    def __init__(
        self, coding: str, max_body: int, settings: Fetch, decoding: AbstractContextManager[object] | None = None
    ) -> None:
        self._decoding = decoding or nullcontext()
        self._decoder = Decoder(coding, max_body, settings.max_ratio) if coding else None
        self._pieces: list[bytes] = []
        self._room = max_body
        self._wire_room = max(max_body, settings.max_wire) if coding else max_body
        self.received = 0
        self.full = False

    def feed(self, piece: bytes) -> int:
        """Take what was received; returns how many more bytes are kept. `full`: there is no use for more."""
        self.received += len(piece)
        if self._decoder is not None:
            with self._decoding:
                piece = self._decoder.feed(piece)
            self.full = self._decoder.stopped or self.received > self._wire_room
        elif len(piece) > self._room:
            piece = piece[: self._room]
            self.full = True
        self._room -= len(piece)
        self._pieces.append(piece)
        return len(piece)

    def end(self, fault: Exception | None) -> tuple[bytes, tuple[TruncationReason | None, str]]:
        """The body, and why it is not whole: its reason and the text that explains it."""
        body = b"".join(self._pieces)
        decoder = self._decoder
        if fault is None and decoder is not None and not self.full:
            decoder.finish()
        if decoder is not None and decoder.broken:
            return body, ("decode", decoder.broken)
        if self.full:
            return body, ("length", "")
        if fault is not None:
            return body, (_cut(fault), str(fault) or type(fault).__name__)
        return body, (None, "")


def _cut(fault: Exception) -> TruncationReason:
    """Why a body that had begun is not whole."""
    if isinstance(fault, TimeoutError):
        return "time"
    if isinstance(fault, ClientPayloadError) and not isinstance(
        fault.__cause__, http_exceptions.ContentLengthError | http_exceptions.TransferEncodingError | OSError
    ):
        return "protocol"
    return "disconnect"
