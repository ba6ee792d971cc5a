"""What travels between the stages. Final contracts: see docs/architecture.md for who writes and reads each.

Everything is JSON through msgspec (pages: bytes with headers), frozen, with a `schema` number. Fields may be added,
never renamed or removed; readers ignore fields they do not know. Times are integers in milliseconds since the epoch
(UTC), durations are seconds as floats, sizes are bytes. `fingerprint` is 16 bytes (base64 in JSON).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from streams.history import HostHistory

SCHEMA = 1
"""The schema number this release writes, for every kind of message."""

NEWEST = 1
"""The newest one it reads: a new format is read one release before it is written."""

PACK_BYTES = 512 * 1024
PACK_ITEMS = 2000
DEFAULT_CRAWL = "default"
DEFAULT_PRIORITY = 5

# One vocabulary for failures, truncation and outcomes, everywhere: topics, metrics, command line.
FailureClass = Literal[
    "protocol", "incomplete", "timeout", "connection", "decode", "too_large", "http_status", "redirect_loop",
    "redirect_limit", "redirect_scheme", "redirect_bad_url", "redirect_no_location", "tls", "dns", "ssrf",
    "host_unreachable", "parser", "unreadable",
]  # fmt: skip
TruncationReason = Literal["length", "time", "disconnect", "decode", "protocol"]
FetchResult = Literal["fetched", "unchanged", "failed", "redirected", "deferred", "excluded"]
OrderKind = Literal["page", "robots"]
RequestKind = Literal["page", "robots", "redirect", "retry"]
Source = Literal["page", "sitemap"]
"""How a URL's answer is read: as a page, or as a list of URLs (sitemap, feed), which makes no record."""

# What `streams.codecs` checks in words of its own stands in the JSON Schema all the same.
CrawlId = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"})]
Priority = Annotated[int, msgspec.Meta(extra_json_schema={"minimum": 0, "maximum": 9})]
Depth = Annotated[int, msgspec.Meta(extra_json_schema={"minimum": 0, "maximum": 1_000_000})]
Natural = Annotated[int, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0.0)]


def _written() -> int:
    """Written although it is the default: left out, a newer release's number would be read as the reader's own."""
    return SCHEMA


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What every top-level message has."""

    schema: int = msgspec.field(default_factory=_written)


class Seed(Message, frozen=True, kw_only=True, omit_defaults=True):
    """One URL somebody wants fetched (topic `urls`; the only message outsiders write)."""

    url: str
    crawl: CrawlId = DEFAULT_CRAWL
    priority: Priority = DEFAULT_PRIORITY  # 0 last … 9 first
    depth: Depth = 0  # the depth at which this URL enters the crawl
    refetch: bool = False  # open a new visit even if it was visited within `seen_ttl`
    headers: dict[str, str] = {}  # sent with the request for this URL only
    meta: Any = None  # any JSON, <= META_LIMIT bytes and META_DEPTH levels, given back in page, record and failure
    traceparent: str = ""


class Origin(msgspec.Struct, frozen=True, array_like=True):
    """Where a seed stood in `urls`, so that reading it twice does not make two visits."""

    topic: str
    partition: int
    offset: int
    index: int = 0


class Candidate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A URL on its way into its shard: a routed seed or the target of a redirect."""

    url: str
    fingerprint: bytes
    crawl: str
    depth: int = 0
    priority: int = DEFAULT_PRIORITY
    parent: str = ""
    via: tuple[str, ...] = ()  # the URLs that redirected here, oldest first
    refetch: bool = False
    headers: dict[str, str] = {}
    meta: Any = None
    origin: Origin | None = None  # seeds only
    source: Source = "page"
    lastmod: int = 0  # ms; what a sitemap says, 0: nothing
    traceparent: str = ""


class Candidates(Message, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="candidates"):
    """Seeds and redirect targets of one shard."""

    items: tuple[Candidate, ...]


class LinkParent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The page on which the next `count` links of a pack were found."""

    url: str
    depth: int  # of the links, i.e. the page's depth + 1
    count: int
    priority: int = DEFAULT_PRIORITY  # the page's, which its links inherit
    traceparent: str = ""


class Links(Message, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="links"):
    """Links of one crawl found on one or more pages, all of one shard: at most PACK_ITEMS and PACK_BYTES."""

    crawl: str
    urls: list[str]
    fingerprints: bytes  # 16 bytes a URL, joined in the order of `urls`
    parents: list[LinkParent]
    lastmods: list[int] = []  # from sitemaps: ms for each of `urls`, 0 where nothing is said; else empty


class WireRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request that went out on the wire; what `fyke audit` proves politeness from."""

    kind: RequestKind
    host: str  # politeness key
    url: str
    start: int
    end: int
    status: int = 0  # 0: no response head arrived
    fetcher: str = ""
    address: str = ""
    delay: float = 0.0  # seconds between two starts that the rules in force asked for
    parallelism: int = 0  # requests at a time that they allowed; 0: not told


class RobotsRules(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The groups of one robots.txt that apply to us (RFC 9309 §2.2), and how they were obtained."""

    origin: str  # scheme://host[:port]
    version: str  # hash of what follows; reported in every outcome
    fetched: int
    expires: int
    access: Literal["rules", "allow_all", "disallow_all"] = "rules"
    rules: tuple[tuple[bool, str], ...] = ()  # (allow?, path pattern)
    crawl_delay: float | None = None
    sitemaps: tuple[str, ...] = ()


class FetchOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="fetch"):
    """What became of one fetch order. Counts only for the visit (a failure: also the attempt) it names."""

    kind: OrderKind = "page"
    crawl: str
    fingerprint: bytes
    url: str
    visit: int
    attempt: int
    epoch: int = 0  # of the shard that released the order
    result: FetchResult
    status: int = 0
    failure: FailureClass | None = None
    reason: str = ""  # excluded: id of the rule
    evidence: dict[str, str] = {}
    location: str = ""  # redirected: the target, resolved, as it goes on the wire
    retry_after: float | None = None
    gap: float = 0.0  # deferred: seconds until the gap after the host's last request has passed, by its delay
    page: tuple[int, int] | None = None  # partition and offset in `pages`
    etag: str = ""
    last_modified: str = ""
    elapsed: float = 0.0  # seconds from the start of the request to its end
    size: int = 0  # bytes of the body, decoded
    rules: int = 0  # version of the crawl's definition that was in force
    robots: str = ""  # version of the robots rules that were in force
    robots_rules: RobotsRules | None = None  # kind robots only
    requests: tuple[WireRequest, ...] = ()
    traceparent: str = ""


class ParseOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="parse"):
    """A page was parsed: its links and record are delivered."""

    crawl: str
    fingerprint: bytes
    visit: int
    depth: int  # the depth with which its links were handled
    page: tuple[int, int]
    failure: FailureClass | None = None
    reason: str = ""
    content: bytes = b""  # content fingerprint
    links: int = 0  # distinct followed links
    dropped: dict[str, int] = {}  # links kept back, by rule id
    url: str = ""
    traceparent: str = ""


class Outcomes(Message, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="outcomes"):
    """Outcomes of one shard, in the order in which they happened."""

    items: tuple[FetchOutcome | ParseOutcome, ...]


class Command(Message, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="command"):
    """An order to a shard.

    `redrive` opens the visit it names for a URL that ended. `forget` removes the rows of one URL, a host or a prefix
    (exactly one of the three is set), which the crawl's definition must deny already, from version `rules` on.
    """

    action: Literal["redrive", "forget"]
    crawl: str
    url: str = ""
    fingerprint: bytes = bytes(16)  # zeros: about more than one URL
    visit: int = 0
    host: str = ""
    prefix: str = ""
    rules: int = 0


class Forgotten(msgspec.Struct, frozen=True, kw_only=True):
    """What sinks must delete: a record without value in `records`, `pages` and `failures`, its key the URL.

    Its headers: the other fields, and `action`: `forget`. `id`: of its command, the same on every replay. `at` in ms.
    """

    url: str
    crawl: str
    id: str
    at: int


class RobotsHop(Message, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="robots_hop"):
    """The robots.txt of `origin` was redirected to a URL of another host: that host's shard is to ask for it.

    So the host that is asked decides when (RFC 9309 §2.3.1.2). The answer comes as an outcome of kind `robots`, with
    `hop` as its visit and `attempt` as its attempt.
    """

    url: str
    origin: str
    crawl: str
    hop: int  # redirects followed so far, this one included
    attempt: int


Inbox = Candidates | Links | Outcomes | Command | RobotsHop


class Basis(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the limits of an order were made of beside the rule of its URL."""

    others: dict[str, int] = {}  # crawls with URLs on the host, with the versions of their definitions
    crawl_delay: float = 0.0  # seconds; of the host's robots.txt, capped
    learned: float = 0.0  # seconds; the delay that answers taught


class FetchOrder(Message, frozen=True, kw_only=True, omit_defaults=True):
    """One request the fetcher may make now (topic `fetches`, key = politeness key)."""

    kind: OrderKind = "page"
    crawl: str
    url: str
    fingerprint: bytes
    host: str  # politeness key
    shard: int
    epoch: int
    visit: int
    attempt: int
    depth: int = 0
    priority: int = DEFAULT_PRIORITY
    parent: str = ""
    via: tuple[str, ...] = ()
    headers: dict[str, str] = {}
    meta: Any = None
    delay: float = 0.0  # seconds between the starts of two requests to the host, of all who have URLs there
    parallelism: int = 1
    basis: Basis | None = None  # None: an earlier release, that did not say
    not_before: int = 0
    rules: int = 0
    robots: str = ""
    user_agent: str = ""
    max_body: int = 0  # 0: the fetcher's own limit
    random_delay: float = 0.0  # seconds: up to so much is added to each gap, at random
    timeout: float = 0.0  # seconds for the whole request; 0: the fetcher's own
    accept: tuple[str, ...] = ()  # media types taken, `text/*` for all of a kind; empty: all
    rule: str = ""  # id of the limit rule that set these; empty: the crawl's own values
    source: Source = "page"
    etag: str = ""
    last_modified: str = ""
    released: int = 0
    traceparent: str = ""


class PageHeaders(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All facts about a page except its body: the Kafka headers of one record in `pages`."""

    schema: int = SCHEMA
    crawl: str
    url: str
    fingerprint: bytes
    visit: int
    attempt: int = 0
    shard: int
    status: int
    headers: list[tuple[str, str]]  # as received, bounded by the fetcher's max_header
    start: int
    first_byte: int
    end: int
    address: str = ""
    robots: str = ""
    rules: int = 0
    truncated: TruncationReason | None = None
    depth: int = 0
    priority: int = DEFAULT_PRIORITY
    parent: str = ""
    source: Source = "page"
    meta: Any = None
    traceparent: str = ""


class Record(Message, frozen=True, kw_only=True, omit_defaults=False):
    """One parsed page (topic `records`). Identity: crawl, url, visit."""

    url: str
    crawl: str
    visit: int
    status: int
    content_type: str
    title: str
    text: str
    links: list[str]  # absolute, without fragment, at most LINKS_IN_RECORD
    link_count: int  # all links of the page that could be followed, before the cut
    depth: int
    parent: str
    fetched_at: int
    meta: Any = None
    truncated: TruncationReason | None = None
    noindex: bool = False  # the page asks not to be found by searching (meta robots, X-Robots-Tag)
    traceparent: str = ""


class Next(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What happens after a failure: `retry` (at a time), `none` (it is final) or `resolved` (it succeeded later)."""

    action: Literal["retry", "none", "resolved"]
    at: int = 0


class Failure(Message, frozen=True, kw_only=True, omit_defaults=False):
    """One failed attempt, or one message that could not be read (topic `failures`)."""

    url: str
    crawl: str
    visit: int
    attempt: int
    failure: FailureClass
    reason: str
    evidence: dict[str, str | int]  # unreadable: topic, partition, offset, bytes (base64, cut at 64 KiB)
    next: Next
    at: int
    meta: Any = None
    traceparent: str = ""
    history: HostHistory | None = None  # of its host, before this failure; none: of an attempt that was told before


class CrawlCounts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One shard's numbers for one crawl."""

    open: int = 0  # waiting + fetched: URLs without a terminal row
    activity: int = 0  # grows with every message that touched the crawl
    released: int = 0
    fetched: int = 0  # pages that wait for the parser
    done: int = 0
    failed: int = 0
    excluded: int = 0
    duplicates: int = 0
    redirected: int = 0
    hosts: int = 0
    due: int = 0  # ended, and to be visited again at a known time
    sitemaps: int = 0  # read to the end; `done` and `fetched` count pages only
    size: int = 0  # bytes of bodies
    kept: int = 0  # pages beside `done` and `fetched`: they wait for their next visit, or it failed
    failures: dict[str, int] = {}  # final ones, by class
    exclusions: dict[str, int] = {}  # by rule id


class Progress(Message, frozen=True, kw_only=True, omit_defaults=True):
    """A shard's counters and the input they cover (topic `progress`). A crawl that is absent counts as zero."""

    shard: int
    epoch: int
    position: int  # next offset of `inbox` to be read
    at: int
    owner: str = ""  # URL of the owner's endpoints, for `fyke why`
    crawls: dict[str, CrawlCounts] = {}
