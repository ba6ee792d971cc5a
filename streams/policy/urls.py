"""URLs: reading, joining, identity, and the parts that policy looks at.

Three forms of one URL, in the order in which they arise:

- *wire form*: the WHATWG serialisation without fragment, `http` or `https` only. It is pure ASCII, fetched exactly as
  written, and what every other function here takes (called `url`, `wire` or `base`).
- *key*: the canonical form, equal for two URLs only if they cannot lead to different pages.
- *fingerprint*: 16 bytes for a key within a crawl, what tables and packs carry; those of one site begin alike.

No function here raises for any text, however broken.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from hashlib import blake2b
from ipaddress import IPv4Address
from typing import Final, Literal

import ada_url
from publicsuffixlist import PublicSuffixList

PolitenessMode = Literal["host", "domain"]

FINGERPRINT_BYTES: Final = 16
_SITE_BYTES: Final = 4
"""Of a fingerprint, its first ones: the same for all URLs of a crawl on one site (scheme and authority)."""
_REST_BYTES: Final = FINGERPRINT_BYTES - _SITE_BYTES
_WEB: Final = ("http://", "https://")
_HOSTS_REMEMBERED: Final = 16_384


def parse(url: str, base: str | None = None) -> str | None:
    """The wire form of `url`, resolved against `base` (WHATWG URL §4.4), or None where there is none.

    None: it cannot be parsed, or its scheme is neither http nor https. The fragment is removed, because it never goes
    out on the wire (RFC 9110 §7.1). Lone surrogates count as U+FFFD (WHATWG Infra, scalar value strings).
    """
    href = _serialise(url, base)
    if href is None or not href.startswith(_WEB):
        return None
    return href.partition("#")[0]


def _serialise(url: str, base: str | None) -> str | None:
    """The WHATWG serialisation of `url` against `base`, of any scheme, with its fragment; None for a failure."""
    try:
        return _ada(url, base)
    except ValueError:
        scalars = _scalar(url), base and _scalar(base)
    if scalars == (url, base):
        return None
    try:
        return _ada(*scalars)
    except ValueError:
        return None


def _ada(url: str, base: str | None) -> str:
    return ada_url.normalize_url(url) if base is None else ada_url.join_url(base, url)


def _scalar(text: str) -> str:
    """`text` with every lone surrogate replaced by U+FFFD; pairs become the character they stand for."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


# --- identity

_ESCAPE: Final = re.compile(r"%([0-9A-Fa-f]{2})")
_BROKEN_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_UNRESERVED: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


def canonical(wire: str) -> str:
    """The key of a wire URL: what percent-encoding leaves open is settled (RFC 3986 §6.2.2), nothing else.

    Escapes of unreserved characters are decoded (§6.2.2.2), the hexadecimal digits of the others are upper case
    (§6.2.2.1). Both are equivalences of the generic syntax, and dot segments, case of host, default ports and the like
    are settled by the wire form already. Kept, because two different pages may answer: an empty query (`/?` is not
    `/`, §6.2.3), the order of parameters, `index.html`, a trailing slash or dot, user information, http or https.

    A URL with a `%` that begins no escape has no normal form and is its own key: decoding next to it could make up a
    new escape (`%%34%31`). So the function is idempotent.
    """
    if "%" not in wire or _BROKEN_ESCAPE.search(wire):
        return wire
    return settle_escapes(wire)


def settle_escapes(text: str) -> str:
    """`text` with escapes of unreserved characters decoded and all other escapes in upper case (RFC 3986 §6.2.2)."""
    return _ESCAPE.sub(_settled, text)


def _settled(escape: re.Match[str]) -> str:
    character = chr(int(escape[1], 16))
    return character if character in _UNRESERVED else escape[0].upper()


def fingerprint(crawl: str, key: str) -> bytes:
    """16 bytes for the URL `key` in `crawl`. Never changes between releases.

    4 bytes BLAKE2b (RFC 7693) of crawl, NUL and the key's scheme and authority, then 12 bytes of crawl, NUL and key. So
    rows of one site lie together in a sorted table, and a page's links, most of which stay on its site, are looked up
    in few of its blocks.

    Two URLs are confused only if both parts are equal. On one site that are 96 bits: among 10⁹ URLs of it with a
    probability of 10¹⁸ / 2⁹⁷ = 6·10⁻¹²; among 10¹¹ URLs over many sites, whose first parts differ mostly, it is
    less than the 6·10⁻⁸ that they would have on one. A site can make up two of its own URLs that are confused (2⁴⁸
    hashes), not one that is confused with another's (2⁹⁶). Two sites with one first part only lie among each other.
    """
    text = f"{crawl}\0{key}"
    end = text.find("/", len(crawl) + 9)  # behind NUL and `https://`
    rest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_REST_BYTES).digest()
    return _site_part(text if end < 0 else text[:end]) + rest


@lru_cache(_HOSTS_REMEMBERED)
def _site_part(text: str) -> bytes:
    """What fingerprints begin with; `text`: the crawl, NUL, scheme and authority."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_SITE_BYTES).digest()


# --- parts of a wire URL


def authority(url: str) -> str:
    """Host and, unless it is the default, port: `example.org`, `127.0.0.1:8080`, `[::1]:8080`. No user information."""
    return url.partition("://")[2].partition("/")[0].rpartition("@")[2]


def hostname(url: str) -> str:
    """The host without port, IPv6 in brackets: `example.org`, `127.0.0.1`, `[::1]`."""
    host = authority(url)
    if host.startswith("["):
        return host[: host.find("]") + 1]
    return host.partition(":")[0]


def origin(url: str) -> str:
    """Scheme, host and port (RFC 6454 §6.2), the space a robots.txt speaks for: `https://example.org:8443`."""
    return f"{url.partition('://')[0]}://{authority(url)}"


def path_query(url: str) -> str:
    """Path and query as requested (RFC 9112 §3.2.1): `/a?b=c`."""
    return "/" + url.partition("://")[2].partition("/")[2]


# --- hosts


@cache
def _public_suffixes() -> PublicSuffixList:
    """The public suffix list, private domains included, loaded at the first question (about 0.1 s)."""
    return PublicSuffixList()


def _is_address(host: str) -> bool:
    """Whether a wire host is an IP address: those are IPv6 in brackets or a dotted quad (WHATWG URL §3.5)."""
    if host.startswith("["):
        return True
    try:
        IPv4Address(host)
    except ValueError:
        return False
    return True


@lru_cache(_HOSTS_REMEMBERED)
def registrable_domain(host: str) -> str | None:
    """The public suffix of `host` and one label more (publicsuffix.org algorithm), in the form that was asked with.

    None: `host` is an IP address, itself a public suffix, or not a host name. A top-level domain that is not listed
    counts as a public suffix. A trailing dot does not count.
    """
    name = host.lower().removesuffix(".")
    if _is_address(name):
        return None
    domain: str | None = _public_suffixes().privatesuffix(name)
    return domain


def site(host: str) -> str:
    """The registrable domain of `host`; an address or a public suffix stands for itself. No trailing dot."""
    return registrable_domain(host) or host.removesuffix(".")


def politeness_key(url: str, mode: PolitenessMode) -> str:
    """Who shares a delay with `url`: all schemes and ports of a host name, or of a registrable domain.

    `example.org.` is `example.org`: a fully qualified name leads to the same server (RFC 1034 §3.1).
    """
    host = hostname(url)
    return site(host) if mode == "domain" else host.removesuffix(".")


# --- the links of a page

_SITE_WIDE: Final = ("/", "http://", "https://")
# Tabs and line ends anywhere, and control characters and blanks in front, are not part of a URL (WHATWG URL §4.4).
_IGNORED: Final = r"[\t\n\r]*"
_OWN_SCHEME: Final = _IGNORED.join(("h", "t", "t", "p", "s?", ":"))
_WITHIN_DIRECTORY: Final = re.compile(rf"(?!{_OWN_SCHEME})[^\x00-\x20?#]", re.IGNORECASE)
_NO_BASE: Final = ("data:", "javascript:")
_LONGEST_REMEMBERED: Final = 1024
_JOINS_REMEMBERED: Final = 65_536


class JoinCache:
    """What hrefs resolved to, for all pages of a process: by site or by directory. Cleared as a whole when full.

    `capacity` counts hrefs and folders; each is remembered up to 1024 characters, so all are at most about 80 MB.
    """

    def __init__(self, capacity: int = _JOINS_REMEMBERED) -> None:
        self._capacity = capacity
        self._size = 0
        self._folders: dict[str, dict[str, str | None]] = {}

    def folder(self, prefix: str) -> dict[str, str | None]:
        """What is known of hrefs that resolve alike for all bases that begin with `prefix`."""
        if len(prefix) > _LONGEST_REMEMBERED:
            return {}
        known = self._folders.get(prefix)
        if known is None:
            self._grow()
            known = self._folders[prefix] = {}
        return known

    def remember(self, known: dict[str, str | None], href: str, url: str | None) -> None:
        """Note in a folder what `href` resolves to. A folder that was cleared away lives on with its joiner only."""
        if len(href) + len(url or "") <= _LONGEST_REMEMBERED:
            self._grow()
            known[href] = url

    def _grow(self) -> None:
        self._size += 1
        if self._size > self._capacity:
            self._folders = {}
            self._size = 1


_shared_joins = JoinCache()


class Joiner:
    """Resolves the hrefs of one page; the same as `parse(href, base)` for each, only faster.

    The base is `base_href` (the first `<base href>` of the page) resolved against the page, unless that fails or gives
    a `data:` or `javascript:` URL (HTML §2.4.3 "document base URL"). Most hrefs depend on a part of the base only:

    - those that begin with `/`, `http://` or `https://` on scheme, user information, host and port;
    - others on that and the path up to its last slash (WHATWG URL §4.4, "relative state": the last segment goes);
    - but an href that is empty or begins with `?` keeps the base's whole path: it is not remembered, nor is one with a
      scheme and no slashes, for `http:?q` is relative to a base of the same scheme.

    So results are remembered between pages by site and by directory, which on sites saves most of the work.
    """

    def __init__(self, page_url: str, base_href: str | None = None, cache: JoinCache = _shared_joins) -> None:
        base = _document_base(page_url, base_href)
        self._base = base
        self._cache = cache
        self._itself = parse(base)
        self._site: dict[str, str | None] = {}
        self._directory: dict[str, str | None] = {}
        if self._itself is not None:
            path_end = self._itself.find("?")
            path = self._itself if path_end < 0 else self._itself[:path_end]
            self._site = cache.folder(path[: path.find("/", len("https://"))])
            self._directory = cache.folder(path[: path.rfind("/") + 1])

    def join(self, href: str) -> str | None:
        """The wire URL of `href`, or None where it leads to nothing that can be fetched."""
        cut = href.find("#")
        if cut == 0:
            return self._itself
        # A blank before the fragment belongs to the URL; at the end of the text it would not.
        if cut > 0 and href[cut - 1] > " ":
            href = href[:cut]
        if href.startswith(_SITE_WIDE):
            known, portable = self._site, True
        else:
            known, portable = self._directory, False
        url = known.get(href, "")
        if url == "":
            url = parse(href, self._base)
            if portable or _WITHIN_DIRECTORY.match(href):
                self._cache.remember(known, href, url)
        return url


def _document_base(page_url: str, base_href: str | None) -> str:
    if base_href is None:
        return page_url
    base = _serialise(base_href, page_url)
    return page_url if base is None or base.startswith(_NO_BASE) else base
