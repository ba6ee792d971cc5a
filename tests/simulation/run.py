"""`make simulate [N=…] [SEED=…] [JOBS=…]`: many schedules of the ring; the last line says how many broke a promise.

`--plan` replays one schedule as it was printed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial

from tests.simulation.ring.plan import Plan, draw, draw_large, parse
from tests.simulation.ring.ring import Verdict, run
from tests.simulation.ring.shrink import shrink

SHOWN = 20
"""Failing schedules that are named."""
EVERY = 10.0
"""Seconds between two lines of progress."""


def main(arguments: list[str] | None = None) -> int:
    """Run what is asked for; 1 if any schedule broke a promise."""
    options = _parser().parse_args(arguments)
    plans = [options.plan] if options.plan else _plans(options)
    bad: list[Verdict] = []
    done = events = 0
    began = said = time.monotonic()
    with _mapped(options.jobs) as mapped:
        for verdict in mapped(plans):
            done, events = done + 1, events + verdict.events
            if verdict.invariant:
                bad.append(verdict)
                if len(bad) <= SHOWN:
                    print(f"seed {verdict.plan.seed} broke a promise: {verdict.detail}", flush=True)
            if time.monotonic() - said > EVERY:
                said = time.monotonic()
                print(f"{done} of {len(plans)} schedules, {events} events, {said - began:.0f} s", flush=True)
    for verdict in bad[: options.shrink]:
        _explain(verdict)
    print(f"{events} events in {time.monotonic() - began:.1f} s")
    print(f"schedules {done}, violations {len(bad)}")
    return bool(bad)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.run", description=__doc__)
    parser.add_argument("-n", type=int, default=500, help="schedules (default 500)")
    parser.add_argument("--seed", type=int, default=0, help="the first one's seed (default 0); the others follow")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--hosts", type=int, default=0, help="schedules over so many hosts each instead of small ones")
    parser.add_argument("--plan", type=parse, help="one schedule, as it was printed")
    parser.add_argument("--shrink", type=int, default=3, help="failing schedules that are made smaller (default 3)")
    return parser


def _plans(options: argparse.Namespace) -> list[Plan]:
    seeds = range(options.seed, options.seed + options.n)
    return [draw_large(seed, options.hosts) if options.hosts else draw(seed) for seed in seeds]


@contextmanager
def _mapped(jobs: int) -> Iterator[Callable[[Iterable[Plan]], Iterable[Verdict]]]:
    """A `map` over schedules in so many processes."""
    if jobs == 1:
        yield partial(map, run)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield partial(pool.map, run, chunksize=4)


def _explain(verdict: Verdict) -> None:
    """Print the smallest form of a failing schedule that breaks the same promise, and how to see it again."""
    smallest = shrink(verdict.plan, lambda plan: run(plan).invariant == verdict.invariant)
    print(f"seed {verdict.plan.seed} in its smallest form: {run(smallest).detail}")
    print(f"  python -m tests.simulation.run --plan '{smallest}'", flush=True)


if __name__ == "__main__":
    sys.exit(main())
