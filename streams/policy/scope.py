"""Which URLs belong to a crawl.

- `any`: always.
- `host`: the URL's host is one of the values: `example.org`, `127.0.0.1:8080`, `[::1]:8080`. If the value has a port,
  the URL's port is the same too (80 or 443, by scheme, where the URL has none); otherwise any port will do.
- `domain`: the URL's host and one of the values have the same registrable domain. Addresses and public suffixes stand
  for themselves.
- `prefix`: the URL's wire form begins with that of one of the values, character by character.

A prefix respects path segments only if it ends in `/`: `https://example.org/docs` also lets in `/docs-old`. It holds
for its own scheme and port alone. Host names are compared without the dot of a fully qualified name.

A value that is no host or URL lets nothing in, so a broken definition excludes pages instead of stopping a worker.

Before the mode a crawl's scope rules are asked, in their order: the first one that matches a URL lets it in, or keeps
it out as `scope:<id of the rule>`. One that cannot be read matches nothing. Rules should not be called like a mode:
what they keep out would be counted together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final

from streams.definitions import Scope, ScopeMode, ScopeRule
from streams.errors import UsageError
from streams.policy import urls
from streams.policy.patterns import compile_pattern

IN_SCOPE: Final = ""
_SITES_REMEMBERED: Final = 8192
_PORT: Final = re.compile(r":([0-9]{1,5})\Z")
_DEFAULT_PORT: Final = {"http": "80", "https": "443"}


def compile_scope(scope: Scope, rules: Iterable[ScopeRule] = ()) -> Callable[[str], str]:
    """A function from a wire URL to "" (in scope) or what excludes it: `scope:<id of a rule>` or `scope:<mode>`."""
    by_mode = _by_mode(scope)
    tests = [(compile_pattern(rule), IN_SCOPE if rule.allow else f"scope:{rule.id}") for rule in rules]
    if not tests:
        return by_mode

    def verdict(url: str) -> str:
        for matches, answer in tests:
            if matches(url):
                return answer
        return by_mode(url)

    return verdict


def _by_mode(scope: Scope) -> Callable[[str], str]:
    """As `compile_scope`, without rules."""
    excluded = f"scope:{scope.mode}"
    if scope.mode == "any":
        return _everything
    if scope.mode == "prefix":
        prefixes = tuple(wire for value in scope.values if (wire := urls.parse(value)))
        return lambda url: IN_SCOPE if url.startswith(prefixes) else excluded
    includes = _hosts(scope.values) if scope.mode == "host" else _domains(scope.values)
    # Links of a page share few sites, so the answer is worked out once for each.
    verdict = lru_cache(_SITES_REMEMBERED)(lambda root: IN_SCOPE if includes(root) else excluded)
    after_scheme = len("https://")  # a host has at least one character, so this is no slash in `http://h/` either
    return lambda url: verdict(url[: url.find("/", after_scheme)])


def _everything(_url: str) -> str:
    return IN_SCOPE


def _hosts(values: Iterable[str]) -> Callable[[str], bool]:
    allowed = {place for value in values if (place := _place(value)) is not None}

    def includes(root: str) -> bool:
        host = urls.hostname(root).removesuffix(".")
        return (host, "") in allowed or (host, _port(root)) in allowed

    return includes


def _place(value: str) -> tuple[str, str] | None:
    """Host and port ("" for any) of a value of mode `host`; None if it is no host."""
    port = _PORT.search(value)
    host = _host(value[: port.start()] if port else value)
    return None if host is None else (host, str(int(port[1])) if port else "")


def _host(text: str) -> str | None:
    """The wire form of a host as somebody wrote it (upper case, IDN); None if it is none or has more than a host."""
    wire = urls.parse(f"http://{text}/")
    if wire is None or urls.path_query(wire) != "/" or wire.count("@") or urls.authority(wire) != urls.hostname(wire):
        return None
    return urls.hostname(wire).removesuffix(".")


def _port(root: str) -> str:
    host_end = len(urls.hostname(root))
    return urls.authority(root)[host_end + 1 :] or _DEFAULT_PORT[root.partition(":")[0]]


def _domains(values: Iterable[str]) -> Callable[[str], bool]:
    allowed = {urls.site(host) for value in values if (host := _host(value)) is not None}
    return lambda root: urls.site(urls.hostname(root)) in allowed


def scope_for(mode: ScopeMode, seeds: Iterable[str]) -> Scope:
    """The scope of `mode` that these seeds span, each value once, in their order.

    `host`: their hosts, with the port if it is not the default one; `domain`: their registrable domains; `prefix`: the
    folders they lie in (up to the last slash of the path, as `wget --no-parent`). Raises `UsageError` for a seed that
    is no http or https URL.
    """
    values = dict.fromkeys(_value_for(mode, _wire(seed)) for seed in seeds)
    return Scope(mode=mode, values=() if mode == "any" else tuple(values))


def _wire(seed: str) -> str:
    wire = urls.parse(seed)
    if wire is None:
        raise UsageError(f"not an http or https URL: {seed}", "Write it as https://example.org/.")
    return wire


def _value_for(mode: ScopeMode, wire: str) -> str:
    if mode == "host":
        return urls.authority(wire)
    if mode == "domain":
        return urls.site(urls.hostname(wire))
    path = wire.partition("?")[0]
    return path[: path.rfind("/") + 1]
