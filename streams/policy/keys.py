"""Keys by a crawl's options: which spellings of a URL it takes for one page, beyond what is always safe.

The wire form is fetched as it is; only the key changes, and with it what is known already. Each option merges URLs that
on most sites are one page and on some are two, so all are off unless the crawl's definition asks for them (`Keys`).
A key need not be a URL that could be fetched.

The steps, in this order: escapes; user and `www.`; path; query. Every function here is idempotent and never raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import translate
from functools import lru_cache
from typing import Final

from streams.definitions import Keys
from streams.policy.urls import canonical

Step = Callable[[str], str]
SAFE: Final = Keys()

TRACKING: Final = (
    # campaigns: Google Analytics, Matomo, Adobe, HubSpot, Mailchimp, Marketo, Vero, Oly, Yandex, Klaviyo, MailerLite
    "utm_*", "ga_source", "ga_medium", "ga_term", "ga_content", "ga_campaign", "mtm_*", "pk_campaign", "pk_kwd",
    "pk_keyword", "pk_source", "pk_medium", "pk_content", "pk_cid", "piwik_campaign", "piwik_kwd", "piwik_keyword",
    "matomo_campaign", "s_kwcid", "ef_id", "_hsenc", "_hsmi", "__hssc", "__hstc", "__hsfp", "hsctatracking", "mc_cid",
    "mc_eid", "mkt_tok", "vero_conv", "vero_id", "oly_anon_id", "oly_enc_id", "_openstat", "_ke", "ml_subscriber",
    "ml_subscriber_hash", "wickedid", "rb_clickid",
    # clicks: Google, Meta, Microsoft, Yandex, X, TikTok, LinkedIn, Pinterest, Snapchat, Zanox, Impact, Branch
    "gclid", "gclsrc", "dclid", "gbraid", "wbraid", "gad_source", "gad_campaignid", "srsltid", "_ga", "_gl", "fbclid",
    "fb_action_ids", "fb_action_types", "msclkid", "yclid", "ysclid", "twclid", "ttclid", "igshid", "li_fat_id", "epik",
    "sccid", "zanpid", "irclickid", "_branch_match_id",
)  # fmt: skip
"""Names of query parameters that tell where a visitor came from, in lower case: case does not count."""

_SESSION_PARAMETER: Final = re.compile(
    r"(?:jsessionid|phpsessid|cfid|cftoken|aspsessionid[a-z]{8})=.*|s(?:ession_?)?id=[0-9a-z]{24,}", re.IGNORECASE
)
_SESSION_IN_PATH: Final = re.compile(
    r";jsessionid=[^/;]*|/(?=\()(?:\(?[a-z]\([0-9a-z]{20,}\))+\)(?=/|\Z)", re.IGNORECASE
)
_WWW: Final = re.compile(r"(?:www\.)+(?=[^:]*\.)")
_SLASHES: Final = re.compile(r"/{2,}")
_HEX: Final = frozenset("0123456789ABCDEFabcdef")
_LITERAL: Final = frozenset(map(chr, range(0x21, 0x7F))) - {"#", "%"}
_PATH_DELIMITERS: Final = frozenset("/?;")
_QUERY_DELIMITERS: Final = frozenset("&=+")


def canonical_by(keys: Keys) -> Step:
    """The function from a wire URL to its key under `keys`; for the default ones `streams.policy.urls.canonical`."""
    return canonical if keys == SAFE else _canonical_by(keys)


@lru_cache(maxsize=256)
def _canonical_by(keys: Keys) -> Step:
    authority = _chain(_without_user if keys.strip_user else None, _without_www if keys.strip_www else None)
    path = _chain(
        _path_unescaped if keys.unescape else None,
        _path_without_session if keys.sessions else None,
        (lambda text: _SLASHES.sub("/", text)) if keys.merge_slashes else None,
    )
    dropped = _dropped(keys)
    unescape, sort = keys.unescape, keys.sort_query

    def key(wire: str) -> str:
        scheme, _, rest = (wire if unescape else canonical(wire)).partition("://")
        place, slash, rest = rest.partition("/")
        way, mark, query = rest.partition("?")
        place = authority(canonical(place))
        if mark and (unescape or dropped or sort):
            query, mark = _query(query, dropped, unescape=unescape, sort=sort)
        return f"{scheme}://{place}{path(slash + way)}{mark}{query}"

    return key


def _chain(*steps: Step | None) -> Step:
    wanted = [step for step in steps if step is not None]

    def run(text: str) -> str:
        for step in wanted:
            text = step(text)
        return text

    return run


def _without_user(authority: str) -> str:
    return authority.rpartition("@")[2]


def _without_www(authority: str) -> str:
    """`www.example.org` is `example.org`; but a name keeps two labels: `www.org` stays."""
    user, at, host = authority.rpartition("@")
    return f"{user}{at}{_WWW.sub('', host, count=1) if host.startswith('www.') else host}"


# --- path


def _path_unescaped(path: str) -> str:
    return unescaped(path, _PATH_DELIMITERS)


def _path_without_session(path: str) -> str:
    """Without `;jsessionid=…` (Servlet 6.0 §7.1.3) and without `/(S(…))` (ASP.NET's cookieless sessions)."""
    while (shorter := _SESSION_IN_PATH.sub("", path)) != path:
        path = shorter
    return path or "/"


# --- query


def _dropped(keys: Keys) -> Callable[[str], object] | None:
    """Whether a parameter (`name=value`) is left out; None: none ever is."""
    tests: list[Callable[[str], object]] = []
    if keys.tracking:
        tests.append(_globs(TRACKING, fold=True))
    if keys.drop:
        tests.append(_globs(keys.drop))
    if keys.sessions:
        tests.append(_SESSION_PARAMETER.fullmatch)
    return (lambda parameter: any(test(parameter) for test in tests)) if tests else None


def _globs(names: tuple[str, ...], *, fold: bool = False) -> Callable[[str], object]:
    """Whether a parameter's name is one of `names`, `*` standing for any characters; `fold`: whatever its case."""
    plain = frozenset(name for name in names if "*" not in name)
    globs = (name.replace("[", "[[]").replace("?", "[?]") for name in names if "*" in name)
    match = re.compile("|".join(map(translate, globs)) or r"(?!)").match

    def named(parameter: str) -> bool:
        name = parameter.partition("=")[0]
        name = name.lower() if fold else name
        return name in plain or match(name) is not None

    return named


def _query(query: str, dropped: Callable[[str], object] | None, *, unescape: bool, sort: bool) -> tuple[str, str]:
    """The query's key and its `?`: none of either where nothing is left of it."""
    parameters = query.split("&")
    if unescape:
        parameters = [unescaped(parameter, _QUERY_DELIMITERS) for parameter in parameters]
    if sort:
        parameters = sorted(_value_or_none(p) for p in parameters if p.partition("=")[0])
    if dropped is not None:
        parameters = [parameter for parameter in parameters if not dropped(parameter)]
    return ("&".join(parameters), "?") if parameters else ("", "")


def _value_or_none(parameter: str) -> str:
    """`name=` is `name`."""
    name, _, value = parameter.partition("=")
    return f"{name}={value}" if value else name


# --- escapes


def unescaped(text: str, kept: frozenset[str]) -> str:
    """`text` with escapes decoded as often as it takes (`%2541` is `A`), and written so that nothing is left to decode.

    Escaped are control characters, blanks, what is not ASCII, `#` and `%` (Google Safe Browsing's canonical form), and
    here also what delimits (`kept`). One pass: a decoded character may complete an escape only at the end of what was
    read so far.
    """
    if text.isascii() and _LITERAL.issuperset(text):
        return text
    read: list[str] = []  # characters, and escapes that stay
    for character in text.encode("utf-8", "surrogatepass").decode("latin-1"):
        read.append(character)
        while len(read) > 2 and read[-3] == "%" and read[-2] in _HEX and read[-1] in _HEX:
            decoded = chr(int(read[-2] + read[-1], 16))
            read[-3:] = [f"%{ord(decoded):02X}" if decoded in kept else decoded]
    return "".join(c if len(c) > 1 or c in _LITERAL else f"%{ord(c):02X}" for c in read)
