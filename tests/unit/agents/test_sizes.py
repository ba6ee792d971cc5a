"""The metrics of the stores."""

from __future__ import annotations

from agents.sizes import StoreMeter
from streams.metrics import Metrics
from streams.state.store import Sizes


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_the_stores_of_a_worker_are_added_up_and_their_cache_counts_once() -> None:
    metrics, looks = Metrics(), []

    def look() -> list[Sizes]:
        looks.append(1)
        return [Sizes(rows=3, disk=50, memtables=7, cache=32, tables=1, behind=0),
                Sizes(rows=4, disk=60, memtables=8, cache=32, tables=2, behind=9)]  # fmt: skip

    StoreMeter(metrics.frontier, look)
    assert value(metrics, "fyke_frontier_store_bytes") == 110
    assert value(metrics, "fyke_frontier_store_rows") == 7
    assert value(metrics, "fyke_frontier_store_compaction_bytes") == 9
    memory = {part: value(metrics, "fyke_frontier_store_memory_bytes", part=part)
              for part in ("memtables", "cache", "tables")}  # fmt: skip
    assert memory == {"memtables": 15, "cache": 32, "tables": 3}
    assert len(looks) == 1


def test_a_worker_without_stores_takes_nothing() -> None:
    metrics = Metrics()
    StoreMeter(metrics.frontier, list)
    assert value(metrics, "fyke_frontier_store_bytes") == 0
    assert value(metrics, "fyke_frontier_store_memory_bytes", part="cache") == 0
