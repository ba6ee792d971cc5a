"""Which URLs a rule is about: `Pattern` made into a test of wire URLs, once for each version of a definition.

- `domain`: a host name, or one with `*` for any characters, dots too. Neither port nor case nor the dot of a fully
  qualified name matters; international names may be written as such.
- `path`: path and query begin so; with `*` and a final `$` as in robots.txt, percent-encoding settled as there.
- `regex`: found anywhere in the wire URL, in linear time (`streams.policy.regex`).

All that is given must match. A pattern that cannot be read matches nothing, so a broken definition stops no worker; who
writes one is told by `check_pattern`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from streams.definitions import Pattern
from streams.errors import UsageError
from streams.policy import urls
from streams.policy.globs import Glob
from streams.policy.regex import LinearRegex
from streams.policy.robots import path_glob

Test = Callable[[str], bool]
_HOST: Final = re.compile(r"[a-z0-9*._-]+|\[[0-9a-f:.]+\]")


@dataclass(frozen=True, slots=True)
class UrlTest:
    """A compiled pattern. `fault`: why it matches nothing, "" if it can be used."""

    domain: str = ""
    on_host: Test | None = None
    on_path: Test | None = None
    regex: LinearRegex | None = None
    fault: str = ""

    def __call__(self, url: str) -> bool:
        """Whether a wire URL matches."""
        return not self.mismatch(url)

    def mismatch(self, url: str) -> str:
        """What does not match of a wire URL: `domain`, `path`, `regex`, "" for nothing; or `fault`."""
        if self.fault:
            return self.fault
        if self.on_host is not None and not self.on_host(urls.hostname(url).removesuffix(".")):
            return "domain"
        return self.beyond_host(url)

    def beyond_host(self, url: str) -> str:
        """As `mismatch`, for a URL on a host that is known to match."""
        if self.on_path is not None and not self.on_path(url):
            return "path"
        return "regex" if self.regex is not None and not self.regex.found_in(url) else ""

    @property
    def whole_hosts(self) -> bool:
        """Whether it matches all URLs of a host or none of them."""
        return self.on_path is None and self.regex is None

    def meets_site(self, site: str) -> bool:
        """Whether it can match URLs of a registrable domain, which stands for itself and all hosts below it."""
        if self.on_host is None or self.on_host(site):
            return True
        below = f".{site}"
        tail = self.domain.rpartition("*")[2]
        return tail.endswith(below) or ("*" in self.domain and below.endswith(tail))


def compile_pattern(pattern: Pattern) -> UrlTest:
    """A test of wire URLs; one that cannot be read matches nothing and says why in its `fault`."""
    try:
        return _compiled(pattern)
    except UsageError as error:
        return UrlTest(fault=error.problem)


def check_pattern(pattern: Pattern) -> None:
    """Raise `UsageError` for a pattern that cannot be read, for whoever writes it."""
    _compiled(pattern)


def _compiled(pattern: Pattern) -> UrlTest:
    domain = _wire_domain(pattern.domain) if pattern.domain else ""
    if pattern.path and not pattern.path.startswith(("/", "*")):
        raise UsageError(f"the path {pattern.path!r} does not begin with / or *", f"Write /{pattern.path}")
    return UrlTest(
        domain=domain,
        on_host=_host_test(domain) if domain else None,
        on_path=path_glob(pattern.path) if pattern.path else None,
        regex=LinearRegex(pattern.regex) if pattern.regex else None,
    )


def _host_test(domain: str) -> Test:
    return Glob(domain + "$").matches if "*" in domain else domain.__eq__


def _wire_domain(domain: str) -> str:
    """A host name or glob as wire URLs write it: lower case, without final dot, international labels encoded."""
    labels = [label if label.isascii() else _encoded(label, domain) for label in domain.lower().split(".")]
    wire = ".".join(labels).removesuffix(".")
    if not _HOST.fullmatch(wire):
        raise UsageError(
            f"the domain {domain!r} is no host name",
            "Write example.org, *.example.org or *, without scheme, port and path.",
        )
    return wire


def _encoded(label: str, domain: str) -> str:
    """A label in its ASCII form (UTS #46, through the WHATWG host parser)."""
    wire = None if "*" in label else urls.parse(f"http://{label}.invalid/")
    if wire is None:
        raise UsageError(f"the domain {domain!r} is no host name", "Write international names without * in the label.")
    return urls.hostname(wire).removesuffix(".invalid")
