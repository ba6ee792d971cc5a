"""What a crawl left behind, read from Kafka, from the exported files and from the server's log, for the checker.

Every topic is read to its end offset by a consumer of our own: the product's reader is not its own witness. What is
read: who ordered which URL when, what was answered when, which row each URL ended with (the changelog, folded), which
records and failures there are, when the crawl ended, and every offset that was ever committed.
"""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from streams import messages as m
from streams.codecs import decode, decode_inbox
from streams.definitions import CrawlDefinition
from streams.errors import MessageError
from streams.frontier.rows import URL_KEY, State, decode_url_row
from streams.state.fencing import NO_EPOCH
from streams.state.fold import fold
from tests.servers.hosts import Entry

OFFSETS = "__consumer_offsets"
Visit = tuple[bytes, int]
"""Fingerprint and visit: what is ordered and answered."""

Place = tuple[int, int]
"""Partition and offset."""


@dataclass(frozen=True, slots=True)
class Row:
    """Where a URL stands in the frontier's table."""

    url: str
    state: State


@dataclass(frozen=True, slots=True)
class Commit:
    """A committed offset, in the order of the log; `at`: when, in seconds since the epoch. Names without prefix."""

    group: str
    topic: str
    partition: int
    offset: int
    at: float = 0.0


@dataclass(slots=True)
class Facts:
    """All that is known about a crawl afterwards. Times in seconds since the epoch.

    `orders`, `answers`: by visit of a page, in the order of time; `order_places`: what stands where in `fetches`, and
    since when; `page_places`: where pages are in `pages`, `parsed`: when the first outcome of each was there;
    `exported`: identities of lines; `ends`: time of each announcement of the end; `rebalances`: when each group had new
    owners; `unread`: messages behind what the groups have committed.
    """

    seeds: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    urls: dict[bytes, str] = field(default_factory=dict)
    orders: dict[Visit, list[float]] = field(default_factory=dict)
    answers: dict[Visit, list[float]] = field(default_factory=dict)
    order_places: dict[Place, tuple[Visit, float]] = field(default_factory=dict)
    page_places: set[Place] = field(default_factory=set)
    parsed: dict[Place, float] = field(default_factory=dict)
    records: list[tuple[str, int]] = field(default_factory=list)
    failures: list[tuple[str, int, str]] = field(default_factory=list)
    exported_records: list[tuple[str, int]] = field(default_factory=list)
    exported_failures: list[tuple[str, int, str]] = field(default_factory=list)
    unreadable: int = 0
    ends: list[float] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    rebalances: dict[str, list[float]] = field(default_factory=dict)
    requests: list[Entry] = field(default_factory=list)
    unread: dict[str, int] = field(default_factory=dict)


async def read(bootstrap: str, topic: str, starts: Mapping[int, int] | None = None, *, bare: bool = False) -> list[Any]:
    """The records of a topic from `starts` (default: the beginning) to its end as it is now, by partition.

    `bare`: without their values, which of a long crawl's pages would be gigabytes.
    """
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False)
    await consumer.start()
    try:
        partitions = (await consumer._client.fetch_all_metadata()).partitions_for_topic(topic)
        assert partitions, f"there is no topic {topic}"
        tps = [TopicPartition(topic, partition) for partition in sorted(partitions)]
        ends = await consumer.end_offsets(tps)
        begins = await consumer.beginning_offsets(tps)
        todo = {tp for tp in tps if max(begins[tp], (starts or {}).get(tp.partition, 0)) < ends[tp]}
        consumer.assign(list(todo))
        for tp in todo:
            consumer.seek(tp, max(begins[tp], (starts or {}).get(tp.partition, 0)))
        found: dict[TopicPartition, list[Any]] = defaultdict(list)
        while todo:
            for tp, records in (await consumer.getmany(*todo, timeout_ms=500)).items():
                kept = [record for record in records if record.offset < ends[tp]]
                found[tp] += [replace(record, value=None) for record in kept] if bare else kept
            todo = {tp for tp in todo if await consumer.position(tp) < ends[tp]}
        return [record for tp in tps for record in found[tp]]
    finally:
        await consumer.stop()


async def ends(bootstrap: str, topics: Iterable[str]) -> dict[str, dict[int, int]]:
    """Where topics end now, by topic and partition."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False)
    await consumer.start()
    try:
        cluster = await consumer._client.fetch_all_metadata()
        result: dict[str, dict[int, int]] = {}
        for topic in topics:
            tps = [TopicPartition(topic, number) for number in cluster.partitions_for_topic(topic)]
            result[topic] = {tp.partition: end for tp, end in (await consumer.end_offsets(tps)).items()}
        return result
    finally:
        await consumer.stop()


READ = ("fetches", "inbox", "pages", "records", "failures", "crawls")
CHANGELOG = "frontier-rows-changelog"


async def collect(bootstrap: str, prefix: str, crawl: str, starts: Mapping[str, Mapping[int, int]]) -> Facts:
    """What the topics say of a crawl. `starts`: where they stood before it, by name without prefix."""
    topics = {OFFSETS: await read(bootstrap, OFFSETS)}  # first: what a commit promises is there by now
    topics |= {name: await read(bootstrap, prefix + name, starts.get(name), bare=name == "pages") for name in READ}
    topics[CHANGELOG] = await read(bootstrap, prefix + CHANGELOG)
    return gather(crawl, prefix, topics)


def gather(crawl: str, prefix: str, topics: Mapping[str, Iterable[Any]]) -> Facts:
    """What the records of topics say of a crawl; by name without prefix. Pure."""
    facts = Facts()
    take_orders(facts, crawl, topics["fetches"])
    take_answers(facts, crawl, topics["inbox"])
    take_pages(facts, crawl, topics["pages"])
    take_records(facts, crawl, topics["records"])
    take_failures(facts, crawl, topics["failures"])
    take_ends(facts, crawl, topics["crawls"])
    take_rows(facts, crawl, topics[CHANGELOG])
    facts.commits = list(commits(topics[OFFSETS], prefix))
    facts.rebalances = rebalances(topics[OFFSETS], prefix)
    return facts


def take_orders(facts: Facts, crawl: str, records: Iterable[Any]) -> None:
    """From `fetches`."""
    for record in records:
        order = decode(m.FetchOrder, record.value)
        if order.crawl == crawl and order.kind == "page":
            facts.urls[order.fingerprint] = order.url
            visit = (order.fingerprint, order.visit)
            facts.orders.setdefault(visit, []).append(record.timestamp / 1000)
            facts.order_places[record.partition, record.offset] = visit, record.timestamp / 1000


def take_answers(facts: Facts, crawl: str, records: Iterable[Any]) -> None:
    """From `inbox`: what was deferred counts as answered, the frontier orders it anew."""
    for record in records:
        try:
            message = decode_inbox(record.value)
        except MessageError:
            facts.unreadable += 1
            continue
        if isinstance(message, m.Outcomes):
            for item in message.items:
                if item.crawl != crawl:
                    continue
                if isinstance(item, m.ParseOutcome):
                    facts.parsed.setdefault(item.page, record.timestamp / 1000)
                elif item.kind == "page":
                    facts.answers.setdefault((item.fingerprint, item.visit), []).append(record.timestamp / 1000)


def take_pages(facts: Facts, crawl: str, records: Iterable[Any]) -> None:
    """From `pages`."""
    for record in records:
        if dict(record.headers).get("crawl", b"").decode() == crawl:
            facts.page_places.add((record.partition, record.offset))


def take_records(facts: Facts, crawl: str, records: Iterable[Any]) -> None:
    """From `records`."""
    for record in records:
        found = decode(m.Record, record.value)
        if found.crawl == crawl:
            facts.records.append((found.url, found.visit))


def take_failures(facts: Facts, crawl: str, records: Iterable[Any]) -> None:
    """From `failures`: those that are final."""
    for record in records:
        found = decode(m.Failure, record.value)
        if found.failure == "unreadable":
            facts.unreadable += 1
        elif found.crawl == crawl and found.next.action != "retry":
            facts.failures.append((found.url, found.visit, found.next.action))


def take_ends(facts: Facts, crawl: str, records: Iterable[Any]) -> None:
    """From `crawls`: every announcement of the end. Two with one version are one: the first of them holds."""
    versions = set()
    for record in records:
        if record.value is None:
            continue
        definition = decode(CrawlDefinition, record.value)
        if definition.id == crawl and definition.state == "ended" and definition.version not in versions:
            versions.add(definition.version)
            facts.ends.append(record.timestamp / 1000)


def take_rows(facts: Facts, crawl: str, records: Iterable[Any]) -> None:
    """From the changelog, folded by partition."""
    by_partition: dict[int, list[Any]] = defaultdict(list)
    for record in records:
        by_partition[record.partition].append(record)
    for log in by_partition.values():
        for key, value in fold(log, NO_EPOCH).rows.items():
            if key.startswith(URL_KEY) and value is not None:
                row = decode_url_row(value)
                if row.crawl == crawl:
                    facts.rows.append(Row(row.url, row.state))
                    facts.urls.setdefault(key[len(URL_KEY) :], row.url)


def commits(records: Iterable[Any], prefix: str) -> Iterator[Commit]:
    """What `__consumer_offsets` holds of groups with a prefix.

    By Kafka's own formats (OffsetCommitKey 0, 1, OffsetCommitValue 0 to 4): each value begins with
    its version (int16) and the offset (int64). Keys of version 2 are about groups, not offsets.
    """
    for record in records:
        if record.key is None or record.value is None or struct.unpack_from(">h", record.key)[0] > 1:
            continue
        group, at = _string(record.key, 2)
        topic, at = _string(record.key, at)
        (partition,) = struct.unpack_from(">i", record.key, at)
        (offset,) = struct.unpack_from(">q", record.value, 2)
        if group.startswith(prefix):
            yield Commit(
                group.removeprefix(prefix), topic.removeprefix(prefix), partition, offset, record.timestamp / 1000
            )


def rebalances(records: Iterable[Any], prefix: str) -> dict[str, list[float]]:
    """When the coordinator noted new members or owners of a group: records whose key has version 2, and the group."""
    found: dict[str, list[float]] = defaultdict(list)
    for record in records:
        if record.key is not None and record.value is not None and struct.unpack_from(">h", record.key)[0] == 2:
            group, _ = _string(record.key, 2)
            if group.startswith(prefix):
                found[group.removeprefix(prefix)].append(record.timestamp / 1000)
    return found


def _string(data: bytes, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">h", data, at)
    return data[at + 2 : at + 2 + length].decode(), at + 2 + length


def exported(facts: Facts, crawl: str, out: Path) -> None:
    """From the output folder."""
    for line in _lines(out / "records.jsonl"):
        if line["crawl"] == crawl:
            facts.exported_records.append((line["url"], line["visit"]))
    for line in _lines(out / "failures.jsonl"):
        if line["crawl"] == crawl:
            facts.exported_failures.append((line["url"], line["visit"], line["next"]["action"]))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        with path.open(encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)
