"""Bytes <-> messages. Decoding checks limits and versions; what cannot be read raises `MessageError`."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from streams import messages as m
from streams.deaths import Death
from streams.definitions import CrawlDefinition, Deployment
from streams.errors import MessageError, NewerSchemaError

META_LIMIT = 4096
META_DEPTH = 32

T = TypeVar("T", bound=msgspec.Struct)

encode = msgspec.json.Encoder().encode
_probe = msgspec.json.Decoder(m.Message)
_seed = msgspec.json.Decoder(m.Seed)
_seeds = msgspec.json.Decoder(list[msgspec.Raw])
_inbox = msgspec.json.Decoder(m.Inbox)
_decoders: dict[type, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind)
    for kind in (m.FetchOrder, m.Record, m.Failure, CrawlDefinition, m.Progress, Deployment, Death)
}

PUBLIC: dict[str, type] = {
    "seed": m.Seed,
    "page": m.PageHeaders,
    "record": m.Record,
    "failure": m.Failure,
    "crawl": CrawlDefinition,
    "progress": m.Progress,
    "order": m.FetchOrder,
    "candidates": m.Candidates,
    "links": m.Links,
    "outcomes": m.Outcomes,
    "command": m.Command,
    "robots_hop": m.RobotsHop,
    "death": Death,
}
"""The names of `fyke schema NAME`."""

CRAWL_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")  # RFC 9110 §5.6.2 token
_SEED_BYTES = 64 * 1024
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding raises; RecursionError: thousands of brackets in brackets."""


def json_schema(name: str) -> dict[str, Any]:
    """The JSON Schema (2020-12) of a public message; KeyError for an unknown name."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | msgspec.json.schema(PUBLIC[name])


def decode(kind: type[T], data: bytes | None) -> T:
    """Read one internal message of `kind`. Raises `MessageError`, or `NewerSchemaError` for a newer release's."""
    try:
        message: T = _decoders[kind].decode(data or b"")
    except _UNREADABLE as error:
        raise _unreadable(data, error) from None
    _check_version(message, kind.__name__)
    return message


def decode_inbox(data: bytes | None) -> m.Inbox:
    """Read one message of `inbox`; errors as in `decode`."""
    try:
        message = _inbox.decode(data or b"")
    except _UNREADABLE as error:
        raise _unreadable(data, error) from None
    _check_version(message, "inbox")
    if isinstance(message, m.Links):
        if len(message.fingerprints) != 16 * len(message.urls):
            raise MessageError("links and fingerprints differ in number")
        if message.lastmods and len(message.lastmods) != len(message.urls):
            raise MessageError("links and lastmods differ in number")
    elif not isinstance(message, m.RobotsHop):
        items = (message,) if isinstance(message, m.Command) else message.items
        if any(len(item.fingerprint) != 16 for item in items):
            raise MessageError("a fingerprint is not 16 bytes")
    return message


def _unreadable(data: bytes | None, error: Exception) -> MessageError | NewerSchemaError:
    """A newer release may have written what this one cannot read: say so instead of dropping it."""
    try:
        schema = _probe.decode(data or b"").schema
    except _UNREADABLE:
        schema = 0
    if schema > m.NEWEST:
        return _newer(schema, "message")
    return MessageError("empty message" if not data else str(error))


def _check_version(message: Any, name: str) -> None:
    if message.schema > m.NEWEST:
        raise _newer(message.schema, name)


def _newer(schema: int, name: str) -> NewerSchemaError:
    return NewerSchemaError(
        f"a {name} has schema {schema}, this release reads up to {m.NEWEST}",
        "A newer release wrote it: upgrade this worker. Nothing was skipped.",
    )


def decode_seeds(data: bytes | None) -> list[m.Seed | MessageError]:
    """Read one record of `urls`: a seed, an array of seeds, or a bare URL as text.

    The array's elements succeed or fail one by one; a record that is wrong as a whole raises `MessageError`.
    A seed of a newer schema is an error for its writer, not a reason to stop: outsiders write this topic.
    """
    parts, array = split_seeds(data)
    return [_try_seed(part) for part in parts] if array else [decode_seed(parts[0])]


def split_seeds(data: bytes | None) -> tuple[list[bytes], bool]:
    """The seeds of one record of `urls`, not read yet, and whether they came as an array. Raises `MessageError`."""
    text = (data or b"").strip()
    if not text:
        raise MessageError("empty message")
    if text[:1] != b"[":
        return [text], False
    try:
        return [bytes(part).strip() for part in _seeds.decode(text)], True
    except _UNREADABLE as error:
        raise MessageError(str(error)) from None


def _try_seed(data: bytes) -> m.Seed | MessageError:
    try:
        return decode_seed(data)
    except MessageError as error:
        return error


def decode_seed(data: bytes) -> m.Seed:
    """Read one seed: an object, or a URL as a JSON string or as text. Raises `MessageError`."""
    if len(data) > _SEED_BYTES:
        raise MessageError(f"a seed is at most {_SEED_BYTES} bytes, this one has {len(data)}")
    if data[:1] in (b"{", b'"'):
        try:
            seed = _seed.decode(data) if data[:1] == b"{" else m.Seed(url=msgspec.json.decode(data, type=str))
        except _UNREADABLE as error:
            raise MessageError(str(error)) from None
    else:
        seed = m.Seed(url=_bare_url(data))
    check_seed(seed)
    return seed


def _bare_url(data: bytes) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise MessageError("neither JSON nor a URL as UTF-8 text") from None
    if "\n" in text or "://" not in text:
        raise MessageError("neither JSON nor a URL as text")
    return text


def check_seed(seed: m.Seed) -> None:
    """Raise `MessageError` where a seed breaks a limit of the contract."""
    if seed.schema > m.NEWEST:
        raise MessageError(f"schema {seed.schema} is newer than {m.NEWEST}")
    if not CRAWL_ID.match(seed.crawl):
        raise MessageError("crawl must be 1 to 64 of A-Z a-z 0-9 . _ - and begin with a letter or digit")
    if not 0 <= seed.priority <= 9:
        raise MessageError("priority must be 0 to 9")
    if not 0 <= seed.depth <= 1_000_000:
        raise MessageError("depth must be 0 to 1,000,000")
    if seed.meta is not None and len(encode(seed.meta)) > META_LIMIT:
        raise MessageError(f"meta is at most {META_LIMIT} bytes")
    if _depth(seed.meta) > META_DEPTH:
        raise MessageError(f"meta is nested at most {META_DEPTH} levels deep")
    for name, value in seed.headers.items():
        if not _HEADER_NAME.match(name) or any(c in value for c in "\r\n\0"):
            raise MessageError(f"header {name!r} is not valid")


def _depth(value: Any) -> int:
    """How deep arrays and objects are nested: 0 for a plain value. What one reader can decode, all must."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [part for item in level for part in (item.values() if isinstance(item, dict) else item)]
    return depth


_FORGET = b"forget"


def encode_forgotten(word: m.Forgotten) -> list[tuple[str, bytes]]:
    """Kafka headers of a record without value that tells sinks to delete; its key is the URL."""
    return [("action", _FORGET), ("crawl", word.crawl.encode()), ("id", word.id.encode()), ("at", b"%d" % word.at)]


def is_forgotten(headers: Any) -> bool:
    """Whether the headers of a record without value tell sinks to delete."""
    return dict(headers).get("action") == _FORGET


def decode_forgotten(key: bytes | None, headers: Any) -> m.Forgotten | None:
    """What a record without value in `records`, `pages` or `failures` says is to be deleted; None: it says nothing."""
    if not is_forgotten(headers):
        return None
    found = dict(headers)
    try:
        return m.Forgotten(url=(key or b"").decode(), crawl=found["crawl"].decode(), id=found["id"].decode(),
                           at=int(found["at"]))  # fmt: skip
    except (KeyError, ValueError):
        return None


_page_fields = {field.name: field for field in msgspec.structs.fields(m.PageHeaders)}
_NUMBERS = frozenset(
    {"schema", "visit", "attempt", "shard", "status", "start", "first_byte", "end", "rules", "depth", "priority"}
)
_JSON = frozenset({"headers", "meta"})


def encode_page_headers(page: m.PageHeaders) -> list[tuple[str, bytes]]:
    """Kafka headers of a page: text and numbers as text, JSON as JSON, the fingerprint in hex; empty ones left out."""
    out: list[tuple[str, bytes]] = []
    for name in _page_fields:
        value = getattr(page, name)
        if value is None or value == "":
            continue
        if name in _JSON:
            out.append((name, encode(value)))
        elif name == "fingerprint":
            out.append((name, value.hex().encode()))
        else:
            out.append((name, str(value).encode()))
    return out


def decode_page_headers(headers: Any) -> m.PageHeaders:
    """Read the headers of one record of `pages`. Raises `MessageError`, or `NewerSchemaError`."""
    try:
        page = msgspec.convert(_page_values(headers), m.PageHeaders)
    except (*_UNREADABLE, ValueError, TypeError, AttributeError) as error:
        _check_page_schema(headers)  # a newer release may write the others in ways that this one cannot read
        raise MessageError(f"page headers: {error}") from None
    _check_version(page, "page")
    if len(page.fingerprint) != 16:
        raise MessageError("page headers: the fingerprint is not 16 bytes")
    return page


def _page_values(headers: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, raw in headers:
        if name in _NUMBERS:
            values[name] = int(raw)
        elif name in _JSON:
            values[name] = msgspec.json.decode(raw)
        elif name == "fingerprint":
            values[name] = bytes.fromhex(raw.decode())
        elif name in _page_fields:
            values[name] = raw.decode()
    return values


def _check_page_schema(headers: Any) -> None:
    schema = next((raw for name, raw in headers if name == "schema"), None) or b""
    if schema.isdigit() and int(schema) > m.NEWEST:
        raise _newer(int(schema), "page")
