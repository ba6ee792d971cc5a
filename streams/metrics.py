"""Every metric of Fyke, once: name, labels, help. One registry per process; labels are bounded (never a host or URL).

Durations are seconds, sizes bytes. A process exports only the metrics of the stages it runs: each group of this module
is made when it is first asked for.
"""

from __future__ import annotations

from functools import cached_property

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SIZES = (1e3, 1e4, 3e4, 1e5, 3e5, 1e6, 3e6, 1e7)


class Count:
    """Raised in a loop over messages, handed to its counter when somebody looks: a tenth of `Counter.inc`'s cost."""

    __slots__ = ("_counter", "_handed", "number")

    def __init__(self, counter: Counter) -> None:
        self.number = 0
        self._counter = counter
        self._handed = 0

    def hand_over(self) -> None:
        """Bring the counter up to date."""
        self._counter.inc(self.number - self._handed)
        self._handed = self.number


class StreamMetrics:
    """What flows through a worker. `topic` is without prefix, `stage` the name of the consumer group without it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.messages_in = Counter(
            "fyke_messages_in", "Messages handed to a stage", ("stage", "topic"), registry=registry
        )
        self.bytes_in = Counter("fyke_bytes_in", "Bytes of keys and values handed to a stage", ("stage", "topic"),
                                registry=registry)  # fmt: skip
        self.batches = Counter("fyke_batches", "Batches handed to a stage", ("stage", "topic"), registry=registry)
        self.messages_out = Counter("fyke_messages_out", "Messages sent", ("stage", "topic"), registry=registry)
        self.bytes_out = Counter("fyke_bytes_out", "Bytes of keys and values sent", ("stage", "topic"),
                                 registry=registry)  # fmt: skip
        self.unreadable = Counter("fyke_unreadable", "Messages that could not be read", ("stage", "topic"),
                                  registry=registry)  # fmt: skip
        self.acked = Counter("fyke_acked_offsets", "Offsets that became safe to commit", ("stage",), registry=registry)
        self.in_flight = Gauge("fyke_in_flight", "Slots taken and not acked", ("stage",), registry=registry)
        self.lag = Gauge("fyke_lag", "Messages of the assigned partitions that are not acked, as of the last fetch",
                         ("stage",), registry=registry)  # fmt: skip
        self.assigned = Gauge("fyke_assigned_partitions", "Partitions this worker owns", ("stage",), registry=registry)
        self.rebalances = Counter("fyke_rebalances", "Times the partitions were taken away", ("stage",),
                                  registry=registry)  # fmt: skip
        self.returns = Gauge("fyke_position_returns", "Times a partition was read again from a lost position",
                               ("stage",), registry=registry)  # fmt: skip
        self.confirmed_age = Gauge("fyke_confirmed_age_seconds", "Since the last accepted heartbeat was sent",
                                   ("stage",), registry=registry)  # fmt: skip
        self.stalled = Gauge("fyke_stalled_seconds", "Time with lag and without progress", ("stage",),
                             registry=registry)  # fmt: skip
        self.clock_skew = Gauge("fyke_clock_skew_seconds", "Own clock minus the broker's, as last seen", ("stage",),
                                registry=registry)  # fmt: skip


class FetchMetrics:
    """The fetcher: requests on the wire."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter("fyke_fetch_requests", "Requests on the wire, by kind", ("kind",), registry=registry)
        self.results = Counter("fyke_fetch_results", "Answered orders, by result and class of failure",
                               ("result", "failure"), registry=registry)  # fmt: skip
        self.statuses = Counter("fyke_fetch_statuses", "Response heads, by class of status", ("status",),
                                registry=registry)  # fmt: skip
        self.truncated = Counter("fyke_fetch_truncated", "Bodies that were cut, by reason", ("reason",),
                                 registry=registry)  # fmt: skip
        self.bytes = Counter("fyke_fetch_bytes", "Body bytes read from the wire", registry=registry)
        self.body_bytes = Histogram("fyke_fetch_body_bytes", "Decoded size of a body", buckets=_SIZES,
                                    registry=registry)  # fmt: skip
        self.seconds = Histogram("fyke_fetch_seconds", "From the start of a request to its end", buckets=_SECONDS,
                                 registry=registry)  # fmt: skip
        self.wait_seconds = Histogram("fyke_fetch_wait_seconds", "From taking an order to its first request",
                                      buckets=_SECONDS, registry=registry)  # fmt: skip
        self.deferred = Counter("fyke_fetch_deferred", "Orders given back unpunished, by reason", ("reason",),
                                registry=registry)  # fmt: skip
        self.joined = Counter("fyke_fetch_joined", "Repeated orders answered by a running or finished fetch",
                              registry=registry)  # fmt: skip
        self.open = Gauge("fyke_fetch_open_requests", "Requests on the wire now", registry=registry)
        self.parked = Gauge("fyke_fetch_parked_orders", "Orders that wait for their host's clock", registry=registry)
        self.body_budget = Gauge("fyke_fetch_body_budget_bytes", "Bytes of the body budget in use", registry=registry)


class FrontierMetrics:
    """The frontier. `crawl` is bounded by the number of open crawls."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.turns = Counter("fyke_frontier_turns", "Turns of all shards", registry=registry)
        self.turn_seconds = Histogram("fyke_frontier_turn_seconds", "One turn, its writes included", buckets=_SECONDS,
                                      registry=registry)  # fmt: skip
        self.applied = Counter("fyke_frontier_applied", "Messages applied, by type", ("type",), registry=registry)
        self.links = Counter("fyke_frontier_links", "Link decisions, by verdict", ("verdict",), registry=registry)
        self.rows = Counter("fyke_frontier_rows_written", "Rows written", registry=registry)
        self.released = Counter("fyke_frontier_orders_released", "Fetch orders released, by kind", ("kind",),
                                registry=registry)  # fmt: skip
        self.unanswered = Gauge("fyke_frontier_orders_unanswered", "Orders out and unanswered", registry=registry)
        self.open_urls = Gauge("fyke_frontier_open_urls", "URLs without a terminal row", ("crawl",), registry=registry)
        self.runnable_hosts = Gauge("fyke_frontier_runnable_hosts", "Hosts that may be visited now",
                                    registry=registry)  # fmt: skip
        self.known_hosts = Gauge("fyke_frontier_known_hosts", "Hosts with waiting URLs", registry=registry)
        self.hosts_in_memory = Gauge("fyke_frontier_hosts_in_memory", "Hosts a worker holds in memory",
                                     registry=registry)  # fmt: skip
        self.queues = Gauge("fyke_frontier_queues", "Queues with waiting URLs: one for each crawl on each host",
                            registry=registry)  # fmt: skip
        self.store_bytes = Gauge("fyke_frontier_store_bytes", "Files of the worker's stores on disk",
                                 registry=registry)  # fmt: skip
        self.store_rows = Gauge("fyke_frontier_store_rows",
                                "Keys in the worker's stores, as RocksDB estimates them: URLs, hosts, index",
                                registry=registry)  # fmt: skip
        self.store_memory = Gauge("fyke_frontier_store_memory_bytes",
                                  "Memory of the worker's stores: memtables, cache, tables (outside of the cache)",
                                  ("part",), registry=registry)  # fmt: skip
        self.store_behind = Gauge("fyke_frontier_store_compaction_bytes", "Bytes that compaction has yet to rewrite",
                                  registry=registry)  # fmt: skip
        self.broken_hosts = Gauge("fyke_frontier_broken_hosts", "Hosts whose breaker is open", registry=registry)
        self.oldest_waiting = Gauge("fyke_frontier_oldest_waiting_seconds",
                                    "Since a host may be visited that got no order yet", registry=registry)  # fmt: skip
        self.finished = Counter("fyke_frontier_finished_urls", "URLs that reached a terminal row", ("outcome",),
                                registry=registry)  # fmt: skip
        self.recoveries = Counter("fyke_frontier_recoveries", "Times a shard's memory was built again",
                                  registry=registry)  # fmt: skip
        self.recovery_seconds = Histogram("fyke_frontier_recovery_seconds", "Building a shard's memory",
                                          buckets=(*_SECONDS, 60.0, 300.0), registry=registry)  # fmt: skip


class ParserMetrics:
    """The parser."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.pages = Counter("fyke_parser_pages", "Pages parsed, by result", ("result",), registry=registry)
        self.links = Counter("fyke_parser_links", "Distinct links found, by what became of them", ("fate",),
                             registry=registry)  # fmt: skip
        self.seconds = Histogram("fyke_parser_page_seconds", "Parsing one page", registry=registry,
                                 buckets=(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.1, 1.0))  # fmt: skip
        self.tries = Counter("fyke_parser_isolated_tries", "Pages parsed in a child process", registry=registry)


class ExporterMetrics:
    """The exporter. `kind` is records or failures."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.lines = Counter("fyke_exporter_lines", "Lines written", ("kind",), registry=registry)
        self.bytes = Counter("fyke_exporter_bytes", "Bytes written", ("kind",), registry=registry)
        self.duplicates = Counter("fyke_exporter_duplicates", "Identities that were written before", ("kind",),
                                  registry=registry)  # fmt: skip
        self.sync_seconds = Histogram("fyke_exporter_sync_seconds", "Forcing files to disk", buckets=_SECONDS,
                                      registry=registry)  # fmt: skip


class Metrics:
    """The registry of a process and its groups of metrics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._counts: list[Count] = []

    def count(self, counter: Counter) -> Count:
        """A number of a hot loop that stands behind a counter."""
        self._counts.append(Count(counter))
        return self._counts[-1]

    @cached_property
    def streams(self) -> StreamMetrics:
        """What every stage has."""
        return StreamMetrics(self.registry)

    @cached_property
    def fetch(self) -> FetchMetrics:
        """The fetcher's."""
        return FetchMetrics(self.registry)

    @cached_property
    def frontier(self) -> FrontierMetrics:
        """The frontier's."""
        return FrontierMetrics(self.registry)

    @cached_property
    def parser(self) -> ParserMetrics:
        """The parser's."""
        return ParserMetrics(self.registry)

    @cached_property
    def exporter(self) -> ExporterMetrics:
        """The exporter's."""
        return ExporterMetrics(self.registry)

    def text(self) -> bytes:
        """All of them in the Prometheus text format (0.0.4)."""
        for count in self._counts:
            count.hand_over()
        return generate_latest(self.registry)
