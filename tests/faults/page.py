"""Writes docs/reliability.md from the results of the fault ring: `python -m tests.faults.page`."""

from __future__ import annotations

from tests.faults.registry import ALL
from tests.faults.results import Results, folder, table
from tests.suites import ROOT

PAGE = ROOT / "docs" / "reliability.md"

PROMISES = """\
# Reliability

<!-- Written by `python -m tests.faults.page` from what `make faults` found; change the words there. -->

## What is promised

1. **No accepted URL is lost.** Accepted means acknowledged by Kafka with acks=all in `urls` or `inbox`: with three
   replicas, two in sync, also if a machine is lost; with the embedded broker any process may be killed, but a power cut
   is not covered. Each visit of it ends in exactly one terminal row: done, failed for good, or excluded with the rule
   that excluded it. A seed that comes after the end of its crawl is excluded by `ended`, or told in `failures` if the
   crawl's rows have expired; what a page leads to that such a seed opened at the last moment is left out.
2. **A crash repeats work, never skips it.** Fetches repeated are at most the orders that were released and unanswered
   at that moment (capped per shard; `fyke config` prints the cap). Records have an identity (crawl, URL key, visit);
   sinks write each identity once.
3. **Politeness survives changes of ownership.** No two requests to one host are closer than its delay, nor more than
   its parallelism at a time, across kill -9, rebalances and scale-out; except a request that was past its last check
   when its process was frozen. `fyke audit` proves it from the log.
4. **The end is exact** for a sealed crawl: announced once, and only when nothing is waiting, in flight, unparsed or on
   its way anywhere.
5. **Bad input costs one message:** a record in `failures` with the reason; nothing stops, nothing disappears.

## How it is put to the test

`make faults` starts three real Kafka nodes on this machine (replication 3, min.insync.replicas 2), makes the topics by
`fyke topics apply` and runs workers as separate `fyke worker` processes: two frontiers, two fetchers, two parsers and
an exporter, half of them static members of their groups. For each line of the table they crawl a new site, made of
numbered pages on hosts in all shards; what must become of each URL follows from the site's seed, not from a crawl. The
seeds are on the disk before Kafka hears of them.

Then every topic is read to its end offset, together with the exported files and the server's own log, in which each
request has the time at which the kernel received it. Every URL gets a verdict: right, lost, unexpected, duplicated, or
fetched more often than its order was out at a fault. For the crawl as a whole: repeats in all, politeness by the
server's log and by `fyke audit`, one end and nothing after it, nothing left unread. Kafka's own `__consumer_offsets`
tells of every commit: none may move backwards, and none may stand behind an order that is not answered yet, or behind a
page whose links and record are not delivered, at the time of the commit. So a crash in the wrong moment need not happen
to find a commit that came too early.

Only faults that can make a fetcher ask again allow a repeat. A request that comes too early is excused only if a
fetcher was frozen and goes on: one for each host, until its event loop has ended the turn in which it stood still.

The checker itself is put to the test by builds that are wrong on purpose (`make faults LINE=sabotage`): `fyke worker`
with one function replaced, under faults that the product stands. What such builds leave in the topics is recorded, and
judged in a second, in `tests/unit/faults/test_sabotage.py`, which is part of `make test`.

    make faults                          all lines in their long form; a run that was cut goes on
    make faults SHORT=1                  the short form; three of its lines are part of `make test`
    make faults LINE=zombies SEED=17     one line again, with the seed that a run printed
    make faults ARGS=--fresh             also what has a result for these sources
    make faults LINE=soak ARGS='--minutes 3'   a trial of a line that lasts; its result is not kept

A seed fixes the site, the victims and the pauses; what the machine does in between is not in it. An hour without
fetchers is not waited for, and no clock is moved: what an hour does is that orders stay unanswered for six times
`frontier.answer_timeout`, so that time-out is shortened.
"""


def page() -> str:
    """The page, from the newest results."""
    results = Results(folder())
    return (
        f"{PROMISES}\n## Measured: the long form\n\n{table(ALL, results, 'long')}\n"
        f"\n## Measured: the short form\n\n{table(ALL, results, 'short')}\n"
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
