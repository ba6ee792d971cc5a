"""What a crawl is: scope, limits, rules, budgets. One message of topic `crawls` for each version of each crawl.

Everything here is data that people write (TOML or JSON) and that travels to every worker, so that it can change while
workers run. Units as in `streams.messages`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from streams.messages import Count, CrawlId, Message, Natural, Seconds

CrawlState = Literal["open", "sealed", "paused", "ended"]
ScopeMode = Literal["host", "domain", "prefix", "any"]
Result = Literal["", "exhausted", "limit", "size", "deadline", "cancelled"]


class Scope(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which URLs belong to a crawl. `values`: hosts, registrable domains or URL prefixes, by mode."""

    mode: ScopeMode = "any"
    values: tuple[str, ...] = ()


class Pattern(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which URLs a rule is about: all that is given must match; nothing given: every URL.

    `domain`: a host name, or a glob such as `*.example.org` (which `example.org` itself does not match). `path`: the
    beginning of path and query, or with `*` (any characters) and a final `$` a pattern as in robots.txt (RFC 9309
    §2.2.3). `regex`: found anywhere in the wire URL.
    """

    domain: str = ""
    path: str = ""
    regex: str = ""


class ScopeRule(Pattern, frozen=True, kw_only=True, omit_defaults=True):
    """Lets URLs in or keeps them out, whatever the scope says; the first rule that matches decides."""

    id: str
    allow: bool = False


class LimitRule(Pattern, frozen=True, kw_only=True, omit_defaults=True):
    """How URLs are fetched; the first rule that matches decides. What is None or empty stays as the crawl says.

    `windows`: times at which the host may be asked, each `Mon-Fri 22:00-06:00` with an optional time zone
    (`Europe/Berlin`; default UTC); empty: always.
    """

    id: str
    delay: Seconds | None = None
    random_delay: Seconds | None = None  # up to so much is added to each gap, at random
    parallelism: Count | None = None
    robots: bool | None = None
    user_agent: str = ""
    headers: dict[str, str] = {}
    timeout: Seconds | None = None  # for a whole request
    max_body: Natural | None = None
    accept: tuple[str, ...] = ()  # media types, `text/*` for all of a kind
    recrawl: Seconds | None = None
    windows: tuple[str, ...] = ()


class Keys(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which spellings of a URL count as one beyond what is always safe. Fixed when the crawl is made: it is the key.

    `drop`: names of query parameters without meaning, with `*` for any characters (`utm_*`); `tracking`: also those
    known to be of that kind. What each of them merges: docs/scope.md.
    """

    tracking: bool = False
    sessions: bool = False  # session ids in path and query are left out
    drop: tuple[str, ...] = ()
    sort_query: bool = False  # parameters in order; empty ones are left out, `a=` is `a`
    strip_www: bool = False
    strip_user: bool = False  # user name and password
    merge_slashes: bool = False  # `//` in the path is `/`
    unescape: bool = False  # escapes are decoded as often as it takes: `%2541` is `A`


class Recrawl(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When done URLs come back by themselves. A sealed crawl ends when no URL has a visit of its `rounds` left.

    `adaptive`: the interval of each URL grows while it stays the same and shrinks when it has changed, between
    `shortest` and `longest`. `rounds`: visits of each URL at most; None: no end.
    """

    interval: Seconds = 7 * 24 * 3600.0
    adaptive: bool = False
    shortest: Seconds = 3600.0
    longest: Seconds = 30 * 24 * 3600.0
    rounds: Count | None = None


class Traps(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is taken for an endless space of URLs. 0 switches a check off."""

    repeats: Natural = 4  # times a segment, or a run of segments, follows itself in a path
    depth: Natural = 32  # segments of a path
    length: Natural = 2048  # characters of a URL
    parameters: Natural = 32  # of a query
    years: Natural = 20  # a calendar's date in the path or query may be away from now
    novelty: Natural = 200  # pages of one pattern of a host without any new content in a row


class CrawlDefinition(Message, frozen=True, kw_only=True, omit_defaults=True):
    """What a crawl is (topic `crawls`, compacted). An update must carry the next `version`; others are ignored."""

    id: CrawlId
    version: Count = 1
    state: CrawlState = "open"
    endless: bool = False
    scope: Scope = Scope()
    scope_rules: tuple[ScopeRule, ...] = ()
    depth: Natural | None = None  # links are followed up to this depth; None: no limit
    limit: Natural | None = None  # pages
    max_size: Natural | None = None  # bytes of bodies
    host_limit: Natural | None = None  # pages of one host
    host_size: Natural | None = None  # bytes of bodies of one host
    deadline: int | None = None  # broker time after which nothing more is released
    duration: Seconds | None = None  # after `created` nothing more is released
    seen_ttl: Seconds = 72 * 3600.0
    delay: Seconds = 0.5
    parallelism: Count = 2
    concurrency: Count | None = None  # orders out at a time over all hosts; None: what the workers take
    limits: tuple[LimitRule, ...] = ()
    adaptive_delay: bool = False  # a slow or overloaded host is asked less often than `delay` says
    robots: bool = True
    sitemaps: bool = True  # those that robots.txt names are read
    user_agent: str = ""
    max_body: Natural = 0
    attempts: Count = 5
    max_redirects: Natural = 10
    keys: Keys = Keys()
    recrawl: Recrawl | None = None
    traps: Traps = Traps()
    seal: dict[int, int] | None = None  # end offsets of `urls` by partition: the last seeds stand before them
    by: str = ""  # who wrote this version, for people
    created: int = 0
    ended: int = 0
    result: Result = ""


class Deployment(Message, frozen=True, kw_only=True, omit_defaults=True):
    """What is pinned when the topics are made (topic `deployment`, compacted): changing it would move every shard."""

    politeness: Literal["host", "domain"]
