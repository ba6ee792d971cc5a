"""Writes the generated pages of `docs/`: settings, topics, metrics. `make docs`; a test fails while they are old."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

from prometheus_client import CollectorRegistry
from pydantic.fields import FieldInfo

from streams import metrics, topics
from streams.settings import Group, MiB, Settings
from tests.suites import ROOT

NOTE = "<!-- Written by `make docs` from {source}; change it there. -->\n"


def pages() -> dict[Path, str]:
    """Every generated page with its text."""
    docs = ROOT / "docs"
    return {
        docs / "settings.md": "".join(settings_page()),
        docs / "topics.md": "".join(topics_page()),
        docs / "metrics.md": "".join(metrics_page()),
    }


def settings() -> Iterator[tuple[str, str, str, FieldInfo]]:
    """Group, name, environment variable and field of every setting, in the order of the source."""
    for group, outer in Settings.model_fields.items():
        kind = outer.annotation
        assert isinstance(kind, type)
        assert issubclass(kind, Group)
        for name, inner in kind.model_fields.items():
            yield group, name, f"FYKE_{group}_{name}".upper(), inner


SETTINGS = """
A flag of the command line wins over the environment, which wins over `fyke.toml` in the working folder, which wins
over the default. In `fyke.toml`, `FYKE_KAFKA_BOOTSTRAP` is `bootstrap` in the table `[kafka]`. `fyke config` prints
what is in force and where it comes from. Sizes are in bytes, durations in seconds.
"""


def settings_page() -> Iterator[str]:
    yield "# Settings\n\n" + NOTE.format(source="streams/settings.py") + SETTINGS
    current = ""
    for group, _, variable, field in settings():
        if group != current:
            current = group
            kind = Settings.model_fields[group].annotation
            yield f"\n## {group}\n\n{inspect.getdoc(kind)}\n\n| setting | default | meaning |\n|---|---|---|\n"
        yield f"| `{variable}` | {default(field)} | {cell(field.description or '')} |\n"


def default(field: FieldInfo) -> str:
    """The default as a person writes it."""
    value: Any = field.get_default(call_default_factory=False)
    if field.default_factory is not None:
        return cell(inspect.getdoc(field.default_factory) or "")
    if value is None or value in ("", ()):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int) and value >= MiB and value % MiB == 0:
        return f"`{value}` ({value >> 30} GiB)" if value % (1 << 30) == 0 else f"`{value}` ({value // MiB} MiB)"
    unit = " s" if isinstance(value, float) else ""
    choices = get_args(field.annotation) if get_origin(field.annotation) is not None else ()
    one_of = f" ({', '.join(f'`{c}`' for c in choices if c != value)})" if isinstance(value, str) and choices else ""
    return f"`{value:g}`{unit}" if isinstance(value, float) else f"`{value}`{one_of}"


TOPICS = """
Names carry the prefix of `FYKE_KAFKA_PREFIX` (`fyke.`). Partition counts are fixed when `fyke topics apply` makes the
topics. Every message has a `schema` number; `fyke schema NAME` prints its JSON Schema.

| topic | key | a message is | written by | read by | kept | partitions |
|---|---|---|---|---|---|---|
"""


def topics_page() -> Iterator[str]:
    yield "# Topics\n\n" + NOTE.format(source="streams/topics.py") + TOPICS
    for topic in topics.ALL:
        partitions = "1" if topic.single else "`FYKE_KAFKA_PARTITIONS`"
        columns = (topic.key, topic.carries, topic.writers, topic.readers, kept(topic), partitions)
        yield f"| `{topic.name}` | {' | '.join(cell(column) for column in columns)} |\n"


def kept(topic: topics.Topic) -> str:
    """How long, in words."""
    if topic.cleanup == "compact":
        return "the last of each key (compacted)"
    if topic.retention == topics.FOREVER:
        return "until `FYKE_KAFKA_KEEP_APPLIED` after its reader committed it"
    days, rest = divmod(topic.retention, topics.DAY)
    return f"{days} d" if not rest else f"{topic.retention // topics.HOUR} h"


METRICS = """
Served at `/metrics` by every worker, in Prometheus' text format. Labels are bounded: never a host or a URL.
"""


def metrics_page() -> Iterator[str]:
    yield "# Metrics\n\n" + NOTE.format(source="streams/metrics.py") + METRICS
    groups: dict[str, Callable[[CollectorRegistry], object]] = {
        name: kind
        for name, kind in vars(metrics).items()
        if name.endswith("Metrics") and "registry" in inspect.signature(kind).parameters
    }
    for name, kind in groups.items():
        title = name.removesuffix("Metrics").lower()
        yield f"\n## {title}\n\n{inspect.getdoc(kind)}\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n"
        for metric in vars(kind(CollectorRegistry())).values():
            for family in metric.describe():
                suffix = "_total" if family.type == "counter" else ""
                labels = ", ".join(f"`{label}`" for label in metric._labelnames)
                yield f"| `{family.name}{suffix}` | {family.type} | {labels} | {cell(family.documentation)} |\n"


def cell(text: str) -> str:
    """Text that cannot break a table."""
    return " ".join(text.split()).replace("|", "\\|")


def main() -> None:
    for path, text in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
