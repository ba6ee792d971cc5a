"""Bodies from recipes (see SOURCE.md beside the data): made piece by piece, so that a bomb is never held in memory."""

from __future__ import annotations

import base64
import random
import re
import secrets
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import chain, repeat
from typing import Any

import brotli

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PIECE = 64 * 1024

Variables = dict[str, str]
"""What the placeholders of one request stand for; `n` and `i` are numbers as text."""

_PLACEHOLDER = re.compile(r"\{(agent|AGENT|random|path|port|other_port|http_date\+(\d+)s|(2?)([ni])(?:\+(\d))?)\}")


def fill(text: str, variables: Variables) -> str:
    """`text` with its placeholders replaced; names that have no value here stay."""

    def value(match: re.Match[str]) -> str:
        name, seconds, twice, letter, plus = match.groups()
        if seconds:
            return format_datetime(datetime.now(UTC) + timedelta(seconds=int(seconds)), usegmt=True)
        if letter:
            number = variables.get(letter)
            return match[0] if number is None else str(int(number) * (2 if twice else 1) + int(plus or 0))
        return secrets.token_hex(8) if name == "random" else variables.get(name, match[0])

    return _PLACEHOLDER.sub(value, text)


def is_endless(recipe: Any) -> bool:
    """Whether a body never ends, or a part of it does not."""
    return isinstance(recipe, dict) and ("endless" in recipe or any(map(is_endless, recipe.get("concat", ()))))


def render(recipe: Any, variables: Variables, encoding: str = "utf-8") -> Iterator[bytes]:
    """The bytes of a recipe, in pieces; `encoding` of plain strings: latin-1 inside `raw`."""
    if isinstance(recipe, str):
        yield fill(recipe, variables).encode(encoding)
        return
    if isinstance(recipe, list):
        for part in recipe:
            yield from render(part, variables, encoding)
        return
    for name, make in _RECIPES.items():
        if name in recipe:
            yield from make(recipe, variables, encoding)
            return
    raise ValueError(f"unknown recipe: {sorted(recipe)}")


def _whole(recipe: Any, variables: Variables, encoding: str) -> bytes:
    return b"".join(render(recipe, variables, encoding))


def _repeat(recipe: Any, variables: Variables, encoding: str) -> Iterator[bytes]:
    unit = _whole(recipe["repeat"], variables, encoding)
    times = recipe["times"]
    block = max(1, PIECE // max(1, len(unit)))
    yield from repeat(unit * block, times // block)
    yield unit * (times % block)


def _pattern(recipe: Any, variables: Variables, encoding: str) -> Iterator[bytes]:
    for number in range(recipe["count"]):
        yield fill(recipe["pattern"], {**variables, "i": str(number)}).encode(encoding)


def _endless(recipe: Any, variables: Variables, encoding: str) -> Iterator[bytes]:
    unit = _whole(recipe["endless"], variables, encoding)
    yield from repeat(unit * max(1, 4096 // len(unit)))


def _links(recipe: Any, variables: Variables, encoding: str) -> Iterator[bytes]:
    count, href = recipe["links"]["count"], recipe["links"]["href"]
    yield b"<!doctype html><html><head><title>links</title></head><body>\n"
    for number in range(count):
        yield f'<a href="{fill(href, {**variables, "i": str(number)})}">l</a>\n'.encode(encoding)
    yield b"</body></html>"


def _half(recipe: Any, variables: Variables, encoding: str) -> Iterator[bytes]:
    whole = _whole(recipe["first_half"], variables, encoding)
    yield whole[: len(whole) // 2]


def _nest(recipe: Any, variables: Variables, encoding: str) -> Iterator[bytes]:
    body = _whole(recipe["of"], variables, encoding)
    for _ in range(recipe["times"]):
        body = b"".join(_CODERS[recipe["nest"]]([body]))
    yield body


def _coded(name: str) -> Callable[[Any, Variables, str], Iterator[bytes]]:
    def make(recipe: Any, variables: Variables, encoding: str) -> Iterator[bytes]:
        coded = _CODERS[name](render(recipe[name], variables, encoding))
        if recipe.get("crc") == "wrong":
            whole = bytearray(b"".join(coded))
            whole[-8] ^= 0xFF
            coded = iter([bytes(whole)])
        yield from coded

    return make


def _deflated(window_bits: int) -> Callable[[Iterable[bytes]], Iterator[bytes]]:
    def code(pieces: Iterable[bytes]) -> Iterator[bytes]:
        coder = zlib.compressobj(6, zlib.DEFLATED, window_bits)
        yield from chain(map(coder.compress, pieces), map(coder.flush, (zlib.Z_FINISH,)))

    return code


def _brotli(pieces: Iterable[bytes]) -> Iterator[bytes]:
    coder = brotli.Compressor(quality=3)
    for piece in pieces:
        yield coder.process(piece)
    yield coder.finish()


def _zstd(pieces: Iterable[bytes]) -> Iterator[bytes]:
    coder = zstd.ZstdCompressor()
    yield from map(coder.compress, pieces)
    yield coder.flush()


_CODERS: dict[str, Callable[[Iterable[bytes]], Iterator[bytes]]] = {
    "gzip": _deflated(31),
    "zlib": _deflated(15),
    "deflate_raw": _deflated(-15),
    "br": _brotli,
    "zstd": _zstd,
}

_RECIPES: dict[str, Callable[[Any, Variables, str], Iterator[bytes]]] = {
    "base64": lambda recipe, _variables, _encoding: iter([base64.b64decode(recipe["base64"])]),
    "repeat": _repeat,
    "concat": lambda recipe, variables, encoding: render(recipe["concat"], variables, encoding),
    "pattern": _pattern,
    "endless": _endless,
    "first_half": _half,
    "links": _links,
    "nest": _nest,
    "random_bytes": lambda recipe, _variables, _encoding: iter(
        [random.Random(recipe.get("seed", 0)).randbytes(recipe["random_bytes"])]
    ),
    **{name: _coded(name) for name in _CODERS},
}
