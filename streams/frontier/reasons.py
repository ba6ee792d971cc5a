"""The rules that keep URLs out and the ways in which they fail, in words: what it is, and what a person can do."""

from __future__ import annotations

from typing import Final, NamedTuple

from streams.definitions import CrawlDefinition

RETRY_AFTER: Final = "Wait; if it happens often, ask the host less: a longer delay, a smaller parallelism."


class Reason(NamedTuple):
    """`id` for programs; `until` (ms) where an end is known."""

    id: str
    text: str
    advice: str
    until: int = 0


_RULES: Final[dict[str, tuple[str, str]]] = {
    "depth": ("it lies deeper than the crawl follows links.", "Allow more depth, or hand it in as a seed."),
    "robots": (
        "robots.txt of its origin forbids it.",
        "That is the site's decision. What you are entitled to fetch all the same can be freed by a rule.",
    ),
    "limit": ("the crawl's page limit was reached.", "Raise the limit and hand it in again, or crawl again."),
    "deadline": ("the crawl's time was over.", "Set a later deadline and hand it in again, or crawl again."),
    "size": ("the crawl's budget of bytes was used up.", "Raise max_size, or crawl again."),
    "limit:host": ("the crawl has as many pages of its host as it may.", "Raise host_limit."),
    "size:host": ("the crawl has as many bytes of its host as it may.", "Raise host_size."),
    "ended": ("the crawl had ended.", "Crawl again."),
    "cancelled": ("somebody cancelled the crawl.", "Crawl again."),
}
_SCOPE: Final = "Widen the scope, or let it in by a scope rule, and hand it in again."

_TRAP: Final = "If it is none, hand it in as a seed, or raise `{check}` of the crawl's traps."

_FAILURES: Final[dict[str, str]] = {
    "http_status": "The site answered so. If it should not: is it behind a login, or are we refused?",
    "timeout": "The site is slow, or out of reach from here.",
    "connection": "The site refuses connections, or is out of reach from here.",
    "dns": "Does the name exist? Is the resolver of the fetchers well?",
    "tls": "The certificate is not valid for this host; fetchers accept no other.",
    "ssrf": "It leads to a private address. Workers take these only with --allow-private.",
    "host_unreachable": "The host did not answer for hours. When it is back, redrive its failures.",
    "parser": "The page is in topic `pages` at the place named; report it as a defect of the parser.",
    "too_large": "The body, or the facts about it, exceed what the topic takes.",
}
_RETRY: Final = "Try again: fyke failures --redrive --crawl {crawl} --class {failure}"


def excluded_by(rule: str, crawl: CrawlDefinition | None) -> Reason:
    """What a rule's id means. Rules of a crawl's own are named as its definition names them."""
    name, _, own = rule.partition(":")
    if rule in _RULES:
        text, advice = _RULES[rule]
        return Reason(rule, text, advice)
    if name == "trap":
        return Reason(rule, f"it looks like an endless space of URLs ({own}).", _TRAP.format(check=own))
    if name == "scope":
        if crawl is not None and any(own == known.id for known in crawl.scope_rules):
            return Reason(rule, f"the crawl's scope rule {own} keeps it out.", "Change or remove that rule.")
        values = ", ".join(crawl.scope.values) if crawl is not None else ""
        return Reason(rule, f"it is out of the crawl's scope ({own}: {values}).", _SCOPE)
    if name == "accept":
        return Reason(rule, f"it was answered with a media type that limit rule {own} does not accept.",
                      "Add the type to `accept` of that rule, then fetch it again: a seed with refetch.")  # fmt: skip
    return Reason(rule, f"rule {rule} keeps it out.", "See the crawl's definition: fyke status NAME.")


def failed_with(failure: str, status: int, attempts: int, when: str, crawl: str) -> Reason:
    """What a final failure means. `when`: as text."""
    code = f" ({status})" if status else ""
    tries = "one attempt" if attempts == 1 else f"{attempts} attempts"
    advice = _FAILURES.get(failure, "The evidence is in topic `failures`.")
    retry = _RETRY.format(crawl=crawl, failure=failure)
    return Reason(failure, f"It failed for good at {when} with {failure}{code} after {tries}.", f"{advice} {retry}")
