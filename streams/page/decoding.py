"""Content codings undone piece by piece, within limits (RFC 9110 §8.4; WHATWG Fetch "handle content codings").

gzip (RFC 1952), deflate with the zlib wrapper (RFC 1950) and without it, br (RFC 7932), zstd (RFC 8878, 9659), in any
stack of up to five. Memory stays bounded however far a body unpacks: every layer passes on pieces of about 64 KiB and
is held to the same limits. Decoding never raises; what went wrong is told by `Decoder.result`.
"""

from __future__ import annotations

import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Literal, Protocol

import brotli

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Result = Literal["complete", "length", "decode"]

MAX_CODINGS: Final = 5
PIECE: Final = 64 * 1024
FREE_EXPANSION: Final = 1 << 20
_MAX_MEMBER_HEADER: Final = 64 * 1024
_ZSTD_WINDOW_LOG: Final = 23  # 8 MiB: the most a sender may ask for (RFC 9659 §3)


class _BrokenStream(Exception):
    """The coded bytes break their format."""


class _Layer(Protocol):
    """One coding being undone."""

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Take all of `data`; yield what it unpacks to, in pieces. Raises `_BrokenStream`."""

    def complete(self) -> bool:
        """True where the stream may end here; no byte at all is an empty body."""


class Decoder:
    """The decoded form of one body, fed as it arrives.

    `content_encoding`: the field's value, several lines joined by commas. `max_bytes`: decoded bytes that are given
    out. `max_ratio`: decoded bytes for one fed byte, beyond the first MiB.
    Once the limit is passed (`full`) or the stream is damaged (`broken`, the reason) further bytes are ignored; what
    was decoded until then has been given out.
    """

    def __init__(self, content_encoding: str, max_bytes: int, max_ratio: int) -> None:
        self.full = False
        self.broken = ""
        self.fed = 0
        self._max_bytes = max_bytes
        self._max_ratio = max_ratio
        self._layers: list[_Layer] = []
        names = codings(content_encoding)  # each is in _LAYERS or in _UNSUPPORTED
        refused = [name for name in names if name in _UNSUPPORTED]
        if len(names) > MAX_CODINGS:
            self.broken = f"{len(names)} content codings, at most {MAX_CODINGS} are undone"
        elif refused:
            self.broken = f"content coding {refused[0]} is not supported"
        else:
            self._layers = [_LAYERS[name]() for name in reversed(names)]
        self._made = [0] * max(1, len(self._layers))

    @property
    def decoded(self) -> int:
        """Bytes given out so far."""
        return self._made[-1]

    @property
    def stopped(self) -> bool:
        """True when feeding more changes nothing: the transfer may be ended."""
        return self.full or bool(self.broken)

    @property
    def result(self) -> Result:
        """`complete`, cut at a limit (`length`) or damaged (`decode`); final after `finish`."""
        return "decode" if self.broken else "length" if self.full else "complete"

    def feed(self, chunk: bytes) -> bytes:
        """The decoded bytes that `chunk` brings; empty once `stopped`."""
        if self.stopped:
            return b""
        self.fed += len(chunk)
        pieces: list[bytes] = []
        try:
            pieces.extend(self._decoded(chunk))
        except _BrokenStream as error:
            self.broken = str(error)
        return b"".join(pieces)

    def finish(self) -> None:
        """The body has ended: a stream that is not at an end of its own becomes `broken`."""
        if not self.stopped and not all(layer.complete() for layer in self._layers):
            self.broken = "the body ends inside the compressed data"

    def _decoded(self, chunk: bytes) -> Iterator[bytes]:
        """Pull `chunk` through the layers lazily, so that nobody unpacks ahead of a limit."""
        if not self._layers:
            return self._limited(0, (chunk,))
        pieces: Iterator[bytes] = (chunk[at : at + PIECE] for at in range(0, len(chunk), PIECE))
        for index, layer in enumerate(self._layers):
            pieces = self._limited(index, _through(layer, pieces))
        return pieces

    def _limited(self, index: int, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Pass on what one layer made until a limit is passed; a body of exactly the limit is complete."""
        limit = min(self._max_bytes, max(FREE_EXPANSION, self._max_ratio * self.fed))
        for piece in pieces:
            room = limit - self._made[index]
            self._made[index] += min(room, len(piece))
            if len(piece) > room:
                self.full = True
                yield piece[:room]
                return
            yield piece


def codings(content_encoding: str) -> list[str]:
    """The codings of a `Content-Encoding` value in the order applied; `identity` and empty elements are none.

    If any of them is a name nobody registered (servers send `utf-8`, `none`, `text/html`), the whole value says
    nothing and the body is taken as it is, as Fetch does.
    """
    names = [name for part in content_encoding.split(",") if (name := part.strip(" \t\r\n").lower())]
    names = [name for name in names if name != "identity"]
    return names if all(name in _LAYERS or name in _UNSUPPORTED for name in names) else []


def _through(layer: _Layer, pieces: Iterable[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        yield from layer.decode(piece)


class _Inflate:
    """The deflate bits of one stream or member, up to their end; wrappers are read by the classes below."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)

    def decode(self, data: bytes) -> Iterator[bytes]:
        while True:
            try:
                piece = self._inflate.decompress(data, PIECE)
            except zlib.error as error:
                raise _BrokenStream(f"deflate: {error}") from None
            data = self._inflate.unconsumed_tail
            if piece:
                yield piece
            # zlib may hold back output although it took all input: only a short piece says that it has no more.
            if self._inflate.eof or (not data and len(piece) < PIECE):
                return

    @property
    def ended(self) -> bool:
        return self._inflate.eof

    @property
    def rest(self) -> bytes:
        return self._inflate.unused_data


class _Gzip:
    """gzip: members one after the other. What follows a member and is no member is ignored, as gzip(1) does.

    A wrong check sum or length is damage; a trailer that is missing is not, for deflate itself marks its last block.
    """

    def __init__(self) -> None:
        self._held = b""  # a header or trailer that is not all there yet
        self._inflate: _Inflate | None = None
        self._check = 0
        self._size = 0
        self._members = 0
        self._ignore = False

    def decode(self, data: bytes) -> Iterator[bytes]:
        data, self._held = self._held + data, b""
        while data and not self._ignore:
            if self._inflate is None:
                data = self._open(data)
            elif not self._inflate.ended:
                for piece in self._inflate.decode(data):
                    self._check = zlib.crc32(piece, self._check)
                    self._size += len(piece)
                    yield piece
                data = self._inflate.rest
            else:
                data = self._close(data)

    def complete(self) -> bool:
        if self._inflate is not None:
            return self._inflate.ended
        return self._members > 0 or not self._held

    def _open(self, data: bytes) -> bytes:
        """Read a member's header; the bytes behind it."""
        if not data.startswith(_GZIP_MAGIC[: len(data)]):
            if not self._members:
                raise _BrokenStream("gzip: the body is not gzip")
            self._ignore = True
            return b""
        size = _gzip_header(data)
        if size is None:
            if len(data) > _MAX_MEMBER_HEADER:
                raise _BrokenStream("gzip: header too long")
            self._held = data
            return b""
        self._inflate, self._check, self._size = _Inflate(), 0, 0
        return data[size:]

    def _close(self, data: bytes) -> bytes:
        """Check a member's trailer (CRC-32 and length modulo 2³², RFC 1952 §2.3.1); the bytes behind it."""
        if len(data) < 8:
            self._held = data
            return b""
        if data[:8] != self._check.to_bytes(4, "little") + (self._size & 0xFFFFFFFF).to_bytes(4, "little"):
            raise _BrokenStream("gzip: wrong check sum or length")
        self._inflate = None
        self._members += 1
        return data[8:]


_GZIP_MAGIC: Final = b"\x1f\x8b\x08"


def _gzip_header(data: bytes) -> int | None:
    """The length of a member's header (RFC 1952 §2.3); None while it is not all there."""
    if len(data) < 10:
        return None
    flags, at = data[3], 10
    if flags & 4:  # FEXTRA: two bytes of length, then the field
        if len(data) < at + 2:
            return None
        at += 2 + int.from_bytes(data[at : at + 2], "little")
    for flag in (8, 16):  # FNAME, FCOMMENT: text up to a NUL
        if flags & flag:
            end = data.find(b"\0", at)
            if end < 0:
                return None
            at = end + 1
    if flags & 2:  # FHCRC
        at += 2
    return at if len(data) >= at else None


class _Deflate:
    """deflate: with the zlib wrapper, as RFC 9110 §8.4.1.2 says, or without, as some servers send it.

    No encoder begins a bare stream with what looks like a zlib header: it would be a stored block with padding set.
    The Adler-32 behind the data is checked if it is there; what follows it is ignored.
    """

    def __init__(self) -> None:
        self._held = b""
        self._inflate: _Inflate | None = None
        self._wrapped = False
        self._check = 1
        self._checked = False

    def decode(self, data: bytes) -> Iterator[bytes]:
        data, self._held = self._held + data, b""
        if self._inflate is None:
            if len(data) < 2:
                self._held = data
                return
            self._wrapped = data[0] & 0x0F == 8 and int.from_bytes(data[:2], "big") % 31 == 0
            self._inflate = _Inflate()
            data = data[2:] if self._wrapped else data
        if not self._inflate.ended:
            for piece in self._inflate.decode(data):
                if self._wrapped:
                    self._check = zlib.adler32(piece, self._check)
                yield piece
            data = self._inflate.rest
        if self._inflate.ended and self._wrapped and not self._checked:
            self._verify(data)

    def complete(self) -> bool:
        return not self._held if self._inflate is None else self._inflate.ended

    def _verify(self, data: bytes) -> None:
        if len(data) < 4:
            self._held = data
            return
        self._checked = True
        if data[:4] != self._check.to_bytes(4, "big"):
            raise _BrokenStream("zlib: wrong check sum")


class _Brotli:
    """br: one stream; what follows its end is damage, for the format leaves no room for it."""

    def __init__(self) -> None:
        self._stream = brotli.Decompressor()
        self._begun = False

    def decode(self, data: bytes) -> Iterator[bytes]:
        self._begun = True
        try:
            piece = self._stream.process(data, output_buffer_limit=PIECE)
            while piece or not self._stream.can_accept_more_data():
                yield piece
                piece = b"" if self._stream.is_finished() else self._stream.process(b"", output_buffer_limit=PIECE)
        except brotli.error as error:
            raise _BrokenStream(str(error)) from None

    def complete(self) -> bool:
        return not self._begun or self._stream.is_finished()


class _Zstd:
    """zstd: frames one after the other, also skippable ones. What follows a frame and is none is ignored."""

    def __init__(self) -> None:
        self._held = b""
        self._frame: zstd.ZstdDecompressor | None = None
        self._frames = 0
        self._ignore = False

    def decode(self, data: bytes) -> Iterator[bytes]:
        data, self._held = self._held + data, b""
        while data and not self._ignore:
            if self._frame is None:
                data = self._open(data)
                continue
            yield from self._pieces(self._frame, data)
            data = self._frame.unused_data
            if self._frame.eof:
                self._frame = None
                self._frames += 1

    def complete(self) -> bool:
        return self._frame is None and (self._frames > 0 or not self._held)

    def _open(self, data: bytes) -> bytes:
        if len(data) < 4:
            self._held = data
            return b""
        if _ZSTD_FRAME.match(data) is None:
            if not self._frames:
                raise _BrokenStream("zstd: the body is not zstd")
            self._ignore = True
            return b""
        self._frame = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG})
        return data

    @staticmethod
    def _pieces(frame: zstd.ZstdDecompressor, data: bytes) -> Iterator[bytes]:
        try:
            piece = frame.decompress(data, PIECE)
            while piece:
                yield piece
                piece = b"" if frame.eof or frame.needs_input else frame.decompress(b"", PIECE)
        except zstd.ZstdError as error:
            raise _BrokenStream(f"zstd: {error}") from None


_ZSTD_FRAME: Final = re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")

_LAYERS: Final[dict[str, Callable[[], _Layer]]] = {
    "gzip": _Gzip,
    "x-gzip": _Gzip,
    "deflate": _Deflate,
    "br": _Brotli,
    "zstd": _Zstd,
}
_UNSUPPORTED: Final = frozenset({"compress", "x-compress", "dcb", "dcz", "exi", "pack200-gzip", "aes128gcm"})

ACCEPT_ENCODING: Final = "gzip, deflate, br, zstd"
"""What a fetcher may offer."""
