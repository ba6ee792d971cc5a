"""The fault ring by itself: `make faults`.

    python -m tests.faults.run [--line NAME] [--short] [--seed N] [--minutes N] [--fresh] [--list]

Runs every line of the table against a real three-broker Kafka, prints a verdict for each, and the table. A run that was
cut goes on with the lines that have no result for these sources; `--fresh` runs all again, `--line` always runs. The
exit code is 1 when a line does not hold. A line with the same seed gets the same site and the same choice of victims
and pauses; what the machine does in between is not in the seed. `--minutes` is a trial of lines that last for a time:
their result is printed, not kept.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.faults import results
from tests.faults.bench import Bench
from tests.faults.lines import Dose, Line, Verdict, named
from tests.faults.registry import ALL
from tests.faults.results import Form, Result, Results


def run_line(line: Line, dose: Dose, bench: Bench) -> Verdict:
    """A verdict whatever happens: what a line could not finish does not hold."""
    try:
        verdict = line.run(bench, dose)
    except Exception as error:  # noqa: BLE001 - the next line runs all the same
        traceback.print_exc()
        verdict = Verdict(problems=[f"{type(error).__name__}: {error}"])
    if not verdict.holds:
        bench.renew()  # what follows must not suffer from what this one left behind
    return verdict


def measure(line: Line, form: Form, seed: str, root: Path, bench: Bench, minutes: float = 0.0) -> Result | None:
    """Run a line, for other than its own time with `minutes`, and say how it went; None if it has no such form."""
    dose = line.dose(short=form == "short")
    if dose is None:
        return None
    if minutes:
        dose = dose.lasting(60 * minutes)
    print(f"--- {line.name}: {dose.text}; seed {seed}; {root}", flush=True)
    at, began = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    bench.turn_to(line.name, seed)
    verdict = run_line(line, dose, bench)
    result = Result(
        line.name, form, dose.text, seed, results.commit(), results.digest(), at, round(time.monotonic() - began, 1),
        verdict.holds, verdict.figures, verdict.problems,
    )  # fmt: skip
    print(f"    {'holds' if result.holds else 'DOES NOT HOLD'}: {results.measurements(result)}", flush=True)
    for problem in result.problems[:20]:
        print(f"    {problem}", flush=True)
    return result


def todo(lines: Sequence[Line], kept: Results, form: Form, tree: str) -> list[Line]:
    """The lines without a result for these sources."""
    found = {line.name: kept.get(line.name, form) for line in lines}
    return [line for line in lines if (result := found[line.name]) is None or result.tree != tree]


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--line", action="append", default=[], metavar="NAME", help="only this line; repeatable")
    parser.add_argument("--short", action="store_true", help="the doses of `make test`")
    parser.add_argument("--seed", default="", metavar="N", help="as an earlier run printed it")
    parser.add_argument("--minutes", type=float, default=0.0, metavar="N", help="a trial of that length (soak)")
    parser.add_argument("--fresh", action="store_true", help="run also what has a result")
    parser.add_argument("--list", action="store_true", help="name the lines and end")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="keep logs and state of the run there")
    asked = parser.parse_args(arguments)
    lines = [named(ALL, name) for name in asked.line] or list(ALL)
    if asked.minutes and len(lines) != 1:
        parser.error("--minutes is for one --line")
    if asked.list:
        print("\n".join(f"{line.name:24} {line.fault}" for line in lines))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # brokers and workers end with us
    form: Form = "short" if asked.short else "long"
    kept = Results(results.folder())
    chosen = lines if asked.line or asked.fresh else todo(lines, kept, form, results.digest())
    seed = asked.seed or str(random.randrange(1_000_000))
    root = asked.folder or Path(tempfile.mkdtemp(prefix="fyke-faults-"))
    with Bench(root) as bench:
        for line in chosen:
            result = measure(line, form, seed, root, bench, asked.minutes)
            if asked.minutes:
                return 0 if result is not None and result.holds else 1
            if result is not None:
                kept.put(result)
    print(f"\n{results.table(lines, kept, form)}\n\nResults: {kept.folder}; logs: {root}")
    forms = [line for line in lines if line.dose(short=asked.short) is not None]
    return 0 if all((result := kept.get(line.name, form)) and result.holds for line in forms) else 1


if __name__ == "__main__":
    sys.exit(main())
