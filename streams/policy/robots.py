"""robots.txt: what a site lets us fetch (RFC 9309), kept as the few rules that speak to us.

`read` turns an answer to `GET /robots.txt` into `RobotsRules`; `Matcher` asks them about URLs. Where the RFC is silent
or the field is kinder than the RFC, the choice is the one that fetches less, or the one of Google's open parser:

- accepted although malformed: misspelt keys (`_KEYS`), a missing colon between exactly two words, a whole, partial or
  UTF-16 byte order mark, relative sitemap URLs. Each plainly says what its author means;
- not accepted: several product tokens on one line, keys that only begin like a known one, rules inside HTML;
- 429 counts as a server error, for the server says "later", not "there is none" (so Google, StormCrawler, Nutch);
- `Crawl-delay`, which the RFC does not know, belongs to the user agents directly above it and never ends a group of
  rules. Several for us: the largest counts.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import Final, Literal

import msgspec

from streams.messages import RobotsRules
from streams.policy import urls
from streams.policy.globs import Glob

AGENT: Final = "fyke"
"""Our product token (RFC 9309 §2.2.1)."""

LIFETIME: Final = 24 * 3600.0
SHORTEST_LIFE: Final = 3600.0
"""Seconds for which an answer may be used (RFC 9309 §2.4), and what a site's own `max-age` may shorten that to."""

RETRY_AFTER: Final = 60.0
"""Seconds until a robots.txt that could not be had is asked for again, where nobody knows better."""

SIZE_LIMIT: Final = 500 * 1024
"""Bytes that are read (RFC 9309 §2.5: at least 500 KiB)."""

LONGEST_DELAY: Final = 24 * 3600.0
"""A larger `Crawl-delay`, in seconds, is taken for a mistake and ignored."""

_Kind = Literal["agent", "allow", "disallow", "delay", "sitemap"]
_KEYS: Final[dict[bytes, _Kind]] = {
    b"user-agent": "agent", b"useragent": "agent", b"user agent": "agent",
    b"allow": "allow",
    b"disallow": "disallow", b"dissallow": "disallow", b"dissalow": "disallow", b"disalow": "disallow",
    b"diasllow": "disallow", b"disallaw": "disallow",
    b"crawl-delay": "delay", b"crawldelay": "delay", b"crawl delay": "delay",
    b"sitemap": "sitemap", b"site-map": "sitemap",
}  # fmt: skip
_NUMBER: Final = re.compile(rb"\d{1,9}(?:\.\d{0,9})?|\.\d{1,9}")
_MAX_AGE: Final = re.compile(rb'max-age\s*=\s*"?(\d{1,12})"?')
_FILE: Final = "/robots.txt"


# --- from an answer to rules


def read(
    origin: str,
    status: int,
    body: bytes,
    now: int,
    agent: str = AGENT,
    *,
    complete: bool = True,
    retry_after: float | None = None,
    max_age: float | None = None,
) -> RobotsRules:
    """What an answer means for the product token `agent` (RFC 9309 §2.3.1).

    2xx: the rules of the body. 4xx, and 3xx where redirects were not followed to an end: all is allowed (§2.3.1.2,
    §2.3.1.3). 429, 5xx and anything else: nothing is, until it is asked for again in `retry_after` seconds. A body that
    is not `complete`, or longer than 500 KiB, loses its last line if that was cut. `max_age`: see `max_age_of`.
    `now` in ms since the epoch.
    """
    expires = _later(now, LIFETIME if max_age is None else min(max(max_age, SHORTEST_LIFE), LIFETIME))
    if 200 <= status < 300:
        return _rules(origin, _read_body(origin, body, agent, complete=complete), now, expires)
    if 300 <= status < 500 and status not in (304, 429):
        return _settled(RobotsRules(origin=origin, version="", fetched=now, expires=expires, access="allow_all"))
    return unreachable(origin, now, retry_after)


def unreachable(origin: str, now: int, retry_after: float | None = None) -> RobotsRules:
    """No usable answer (RFC 9309 §2.3.1.4): nothing may be fetched until it is asked for again, soon."""
    expires = _later(now, RETRY_AFTER if retry_after is None else retry_after)
    return _settled(RobotsRules(origin=origin, version="", fetched=now, expires=expires, access="disallow_all"))


def max_age_of(fields: Iterable[bytes]) -> float | None:
    """Seconds for which `Cache-Control` fields let an answer be used (RFC 9111 §5.2.2); None: they say nothing.

    `no-store` and `no-cache` count as 0: whoever changes the file at any moment is asked as often as is decent.
    """
    words = [word.strip().lower() for field in fields for word in field.split(b",")]
    ages = [float(found[1]) for word in words if (found := _MAX_AGE.fullmatch(word))]
    return 0.0 if b"no-store" in words or b"no-cache" in words else min(ages, default=None)


def _rules(origin: str, found: _Reader, now: int, expires: int) -> RobotsRules:
    return _settled(RobotsRules(
        origin=origin,
        version="",
        fetched=now,
        expires=expires,
        rules=_by_precedence(found.rules()),
        crawl_delay=found.delay(),
        sitemaps=tuple(found.sitemaps),
    ))  # fmt: skip


def _later(now: int, seconds: float) -> int:
    return now + round(seconds * 1000)


def _settled(rules: RobotsRules) -> RobotsRules:
    """`rules` with their version: a hash of all that decides about a URL or a delay."""
    decisive = msgspec.json.encode((rules.access, rules.rules, rules.crawl_delay))
    return msgspec.structs.replace(rules, version=blake2b(decisive, digest_size=6).hexdigest())


def _by_precedence(rules: Iterable[tuple[bool, bytes]]) -> tuple[tuple[bool, str], ...]:
    """The rules that can match, most octets first, allow before disallow (RFC 9309 §2.2.2): the first match decides."""
    measured = [(allow, _percent_encoded(path)) for allow, path in rules if path.startswith((b"/", b"*"))]
    measured.sort(key=lambda rule: (-len(rule[1]), not rule[0]))
    decisive: dict[str, bool] = {}
    for allow, pattern in measured:
        decisive.setdefault(_comparable_pattern(pattern), allow)
    return tuple((allow, pattern) for pattern, allow in decisive.items())


# --- reading lines


def _read_body(origin: str, body: bytes, agent: str, *, complete: bool) -> _Reader:
    reader = _Reader(origin, agent)
    for key, value in _lines(_text(body, complete=complete)):
        reader.line(key, value)
    return reader


def _text(body: bytes, *, complete: bool) -> bytes:
    """The lines to read, as UTF-8 or something near it: cut to the limit, without byte order mark."""
    if len(body) > SIZE_LIMIT or not complete:
        body = body[:SIZE_LIMIT]
        body = body[: max(body.rfind(b"\n"), body.rfind(b"\r")) + 1]
    if body.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return body.decode("utf-16", "replace").encode("utf-8", "replace")
    mark = codecs.BOM_UTF8
    while not body.startswith(mark):
        mark = mark[:-1]
    return body[len(mark) :]


def _lines(text: bytes) -> Iterator[tuple[_Kind, bytes]]:
    """The lines that say something to us: what kind it is, and its value without blanks and comment."""
    for line in text.splitlines():
        key, colon, value = line.partition(b"#")[0].partition(b":")
        if not colon:
            words = key.split()
            if len(words) != 2:
                continue
            key, value = words
        kind = _KEYS.get(key.strip().lower())
        if kind is not None:
            yield kind, value.strip()


class _Reader:
    """Sorts the lines of one file into groups (RFC 9309 §2.2.1): those that name us, and those for everybody.

    All groups that name us count as one; those for everybody count only if no group names us.
    """

    def __init__(self, origin: str, agent: str) -> None:
        self.sitemaps: dict[str, None] = {}
        self._file = origin + _FILE
        self._naming = _naming(agent)
        self._named = False  # a group names us, even if without rules
        self._rules: dict[bool, list[tuple[bool, bytes]]] = {True: [], False: []}  # by: names us?
        self._delays: dict[bool, float | None] = {True: None, False: None}
        self._rules_for: set[bool] = set()  # whom the next rule concerns
        self._delay_for: set[bool] = set()
        self._ruled = False  # a rule stands below the last user agent: the next one begins a group
        self._delayed = False

    def rules(self) -> list[tuple[bool, bytes]]:
        """(allow?, path as written) of the groups that concern us."""
        return self._rules[self._named]

    def delay(self) -> float | None:
        """The delay in seconds that concerns us."""
        return self._delays[self._named]

    def line(self, kind: _Kind, value: bytes) -> None:
        """Take the next line."""
        if kind == "agent":
            self._user_agent(value)
        elif kind == "delay":
            self._crawl_delay(value)
        elif kind == "sitemap":
            url = urls.parse(value.decode("utf-8", "replace"), self._file) if value else None
            if url is not None:
                self.sitemaps[url] = None
        else:
            self._ruled = True
            for us in self._rules_for:
                self._rules[us].append((kind == "allow", value))

    def _user_agent(self, value: bytes) -> None:
        if self._ruled:
            self._rules_for = set()
        if self._ruled or self._delayed:
            self._delay_for = set()
        self._ruled = self._delayed = False
        if self._naming.match(value):
            concerned = self._named = True
        elif value[:2].strip() == b"*":
            concerned = False
        else:
            return
        self._rules_for.add(concerned)
        self._delay_for.add(concerned)

    def _crawl_delay(self, value: bytes) -> None:
        self._delayed = True
        if not _NUMBER.fullmatch(value):
            return
        seconds = float(value)
        if seconds > LONGEST_DELAY:
            return
        for us in self._delay_for:
            self._delays[us] = max(seconds, self._delays[us] or 0.0)


def _naming(agent: str) -> re.Pattern[bytes]:
    """What a user-agent line looks like that names the product token `agent`: any case, version and comment ignored.

    A product token consists of letters, `_` and `-` (RFC 9309 §2.2.1), so `fyke/1.0` and `fyke2` name `fyke`, and
    `fykebot` does not. For an `agent` with digits, which the RFC does not provide for, digits belong to tokens.
    """
    goes_on = rb"[\w-]" if any(map(str.isdigit, agent)) else rb"[A-Za-z_-]"
    return re.compile(re.escape(agent.encode()) + rb"(?!" + goes_on + rb")", re.IGNORECASE)


# --- comparing paths

_PLAIN: Final = re.compile(r"[A-Za-z0-9\-._~!&()+,/:;=?@\[\]]*")
_BEYOND_ASCII: Final = re.compile(r"[^\x00-\x7F]")
_ENCODED: Final = re.compile(r"[^A-Za-z0-9\-._~!&()+,/:;=?@\[\]%*$]")


def _percent_encoded(path: bytes) -> str:
    """A rule's path with octets outside ASCII percent-encoded (RFC 9309 §2.2.2): what its length is measured in."""
    return _BEYOND_ASCII.sub(_escape, path.decode("latin-1"))


def _escape(character: re.Match[str]) -> str:
    return f"%{ord(character[0]):02X}"


def _comparable(text: str) -> str:
    """Percent-encoding settled one way for rules and URLs (RFC 9309 §2.2.2), `*` and `$` left alone.

    Unreserved characters stand for themselves; all that a URL on the wire may or must encode is encoded, among it `'`,
    which WHATWG URLs encode in a query only.
    """
    return _ENCODED.sub(_escape, urls.settle_escapes(text))


def _comparable_pattern(pattern: str) -> str:
    """A rule's path made comparable; `$` means the end of the path only where it stands last (RFC 9309 §2.2.3)."""
    text = _comparable(pattern)
    return text[:-1].replace("$", "%24") + text[-1:]


def _comparable_path(url: str) -> str:
    """Path and query of a URL made comparable: its own `*` and `$` are encoded, which a rule may do to mean them."""
    path = urls.path_query(url)
    if _PLAIN.fullmatch(path):
        return path
    return _comparable(path).replace("*", "%2A").replace("$", "%24")


def path_glob(path: str) -> Callable[[str], bool]:
    """A test of wire URLs by a path written as in robots.txt, percent-encoding settled as there."""
    glob = Glob(_comparable_pattern(_percent_encoded(path.encode("utf-8", "replace"))))
    return lambda url: glob.matches(_comparable_path(url))


class Matcher:
    """Asks the rules of one origin about its URLs.

    Most URLs match no disallow rule; that is found out first, by C-speed tests on literals.
    """

    def __init__(self, rules: RobotsRules) -> None:
        self._access = rules.access
        self._ordered = tuple((allow, pattern, Glob(pattern)) for allow, pattern in rules.rules)
        globs = tuple(glob for allow, _, glob in self._ordered if not allow)
        self._prefixes = tuple(glob.head for glob in globs if glob.literal)
        self._probes = tuple(glob.probe for glob in globs if not glob.literal)

    def allowed(self, url: str) -> bool:
        """Whether the wire URL may be fetched. The file itself always may (RFC 9309 §2.2.2)."""
        path = _comparable_path(url)
        if self._access != "rules":
            return self._access == "allow_all" or path == _FILE
        if not path.startswith(self._prefixes):
            for probe in self._probes:
                if probe in path:
                    break
            else:
                return True
        rule = self._decisive(path)
        return rule is None or rule[0] or path == _FILE

    def rule(self, url: str) -> tuple[bool, str] | None:
        """The rule (allow?, path) that decides about the wire URL, for explanations; None: no rule does."""
        return self._decisive(_comparable_path(url))

    def _decisive(self, path: str) -> tuple[bool, str] | None:
        for allow, pattern, glob in self._ordered:
            if glob.matches(path):
                return allow, pattern
        return None
