"""From the options of `fyke crawl` to a plan: what is allowed, what the defaults are. No I/O."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from agents.cli.configuration import override
from agents.cli.outputs import Plan, check_name, default_name
from streams.definitions import CrawlDefinition, Recrawl, ScopeMode
from streams.errors import UsageError
from streams.policy import urls
from streams.policy.scope import scope_for
from streams.settings import Settings

_POLITE = (0.5, 2)  # delay in seconds, parallelism
_OWN_MACHINE = (0.0, 32)
_RULED = ("depth", "limit", "host_limit", "max_size", "duration", "delay", "parallelism")
"""Options that a rule file may say, too."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of `fyke crawl`; None where the rule file or the seeds decide. `rules`: what the file says."""

    scope: ScopeMode | None = None
    depth: int | None = None
    limit: int | None = None
    host_limit: int | None = None
    max_size: int | None = None
    duration: float | None = None
    delay: float | None = None
    parallelism: int | None = None
    no_sitemaps: bool = False
    recrawl: float | None = None
    rounds: int | None = None
    workers: int = 1
    in_process: bool = False
    name: str | None = None
    demo: bool = False
    rules: Mapping[str, Any] = field(default_factory=dict)


def plan_crawl(asked: Asked, seeds: tuple[str, ...], settings: Settings) -> tuple[Plan, Settings, list[str]]:
    """The plan, the settings of its workers, and notes a person should read. Raises `UsageError`.

    Seeds that all are on loopback mean one's own machine: no delay, more requests at once, and private addresses are
    allowed, since nothing could be fetched otherwise. Loopback seeds beside public ones are refused without
    `--allow-private`: pages from outside could then lead into this machine.
    """
    wire = tuple(dict.fromkeys(_wire(seed) for seed in seeds))
    local = [seed for seed in wire if is_loopback(seed)]
    notes = []
    if local and not settings.fetch.allow_private:
        if len(local) < len(wire):
            raise UsageError(
                f"{local[0]} is on this machine, other seeds are not",
                "Crawl them apart, or pass --allow-private if pages from outside may lead to private addresses.",
            )
        settings = override(settings, {"fetch.allow_private": True})
        notes.append("All seeds are on loopback: private addresses are allowed (as with --allow-private).")
    delay, parallelism = _OWN_MACHINE if len(local) == len(wire) else _POLITE
    name = check_name(asked.name) if asked.name is not None else default_name(urls.authority(wire[0]))
    options = {name: value for name in _RULED if (value := getattr(asked, name)) is not None}
    if asked.scope is not None or "scope" not in asked.rules:
        options["scope"] = scope_for(asked.scope or "host", wire)
    options |= _about_visits(asked)
    said = {"delay": delay, "parallelism": parallelism, **asked.rules, **options}
    definition = replace(CrawlDefinition(id=name), **said)
    plan = Plan(
        name=name,
        seeds=wire,
        definition=definition,
        settings=kept_settings(settings),
        named=asked.name is not None,
        workers=asked.workers,
        in_process=asked.in_process,
        demo=asked.demo,
    )
    return plan, settings, notes


def _about_visits(asked: Asked) -> dict[str, Any]:
    """What the options say about sitemaps and recrawls."""
    said: dict[str, Any] = {"sitemaps": False} if asked.no_sitemaps else {}
    if asked.recrawl is not None:
        said["recrawl"] = Recrawl(interval=asked.recrawl, rounds=asked.rounds)
    elif asked.rounds is not None:
        raise UsageError("--rounds says how often, but not when", "Add --recrawl SECONDS.")
    return said


_KEPT = ("worker.state", "kafka.bootstrap", "kafka.prefix", "fetch.allow_private", "fetch.connect_to")


def kept_settings(settings: Settings) -> dict[str, object]:
    """What a crawl that goes on later must find again, by dotted name, as JSON values."""
    values = settings.model_dump(mode="json")
    return {dotted: values[dotted.partition(".")[0]][dotted.partition(".")[2]] for dotted in _KEPT}


def is_loopback(url: str) -> bool:
    """Whether a wire URL names this machine literally: 127.0.0.0/8, ::1, localhost (RFC 6761 §6.3)."""
    host = urls.hostname(url).strip("[]").removesuffix(".")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _wire(seed: str) -> str:
    wire = urls.parse(seed)
    if wire is None:
        guess = f"https://{seed}" if "://" not in seed else "https://example.org/"
        raise UsageError(f"{seed!r} is not an http or https URL", f"Write it in full, e.g. {guess}")
    return wire
