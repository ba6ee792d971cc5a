"""Who acts: one module per stage (intake, frontier, fetcher, parser, exporter), put together by `worker`.

Agents decide nothing: they take messages, ask `streams`, act through `delivery` (Kafka) and `io` (sockets and files),
and talk to each other through topics only.
"""
