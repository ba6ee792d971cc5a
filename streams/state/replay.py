"""A store filled from its changelog without an owner: what `fyke state rebuild --now` does, and benchmarks measure."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from streams.state.changelog import ChangelogReader
from streams.state.fold import fold
from streams.state.store import Store


async def replay(reader: ChangelogReader, store: Store, partition: int, end: int) -> AsyncGenerator[int, None]:
    """Read the changelog from where the store is to `end`, then make index and counters; yields records per step.

    Interrupted, the store is as good as any that a worker left: the next start goes on with it.
    """
    async with aclosing(reader.read({partition: store.offset + 1}, {partition: end})) as stretches:
        async for _, records, position in stretches:
            store.absorb(fold(records, store.epoch), position - 1)
            yield len(records)
    for _ in store.derive():
        yield 0
