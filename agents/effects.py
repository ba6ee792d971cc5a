"""What a turn of the frontier causes in other topics, durable before the rows that close its causes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from streams import messages as m
from streams.codecs import encode, encode_forgotten
from streams.policy.urls import PolitenessMode, politeness_key
from streams.topics import FAILURES, FETCHES, INBOX, PAGES, RECORDS, page_partition, shard_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agents.delivery import Delivery
    from streams.frontier.turn import Turn


async def send_effects(turn: Turn, delivery: Delivery, politeness: PolitenessMode) -> None:
    """Send what is for other shards, failures, and what sinks must delete; return when all is durable."""
    sent: list[Any] = []
    shards = delivery.partitions(INBOX)
    candidates = ((item.url, m.Candidates(items=(item,))) for item in turn.candidates)
    for url, message in (*candidates, *turn.routed):
        target = shard_of(politeness_key(url, politeness), shards)
        sent.append(await delivery.send(INBOX, encode(message), partition=target))
    partitions = delivery.partitions(FAILURES)
    for failure in turn.failures:
        target = page_partition(failure.url, partitions)
        sent.append(await delivery.send(FAILURES, encode(failure), key=failure.url.encode(), partition=target))
    for word in turn.forgotten:
        sent += await _tell(word, delivery)
    await asyncio.gather(*sent)


async def _tell(word: m.Forgotten, delivery: Delivery) -> list[Any]:
    """Tell the sinks what to delete, behind it in the partitions in which it stands."""
    key, headers = word.url.encode(), encode_forgotten(word)
    page = page_partition(word.url, delivery.partitions(PAGES))
    places = {
        PAGES: page,
        RECORDS: page % delivery.partitions(RECORDS),
        FAILURES: page_partition(word.url, delivery.partitions(FAILURES)),
    }
    return [
        await delivery.send(topic, None, key=key, partition=partition, headers=headers)
        for topic, partition in places.items()
    ]


async def send_orders(orders: Iterable[m.FetchOrder], delivery: Delivery) -> None:
    """Send what may be fetched now, and wait until it is durable."""
    partitions = delivery.partitions(FETCHES)
    by_partition: dict[int, list[tuple[bytes | None, bytes | None]]] = {}
    for order in orders:
        items = by_partition.setdefault(shard_of(order.host, partitions), [])
        items.append((order.host.encode(), encode(order)))
    await asyncio.gather(*(delivery.send_all(FETCHES, number, items) for number, items in by_partition.items()))
