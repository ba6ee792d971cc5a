"""Wall clocks of workers jump by hours, ahead and back, while they run; each worker's differently.

The jump is made below Python, in the C library's `clock_gettime`, `gettimeofday` and `time`: a library that is loaded
before it adds an offset, read from a file that is mapped into memory. Only CLOCK_REALTIME is moved, as by a person who
sets the clock. The servers and brokers keep the right time.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.faults.bench import Bench
from tests.faults.lines import Dose, Line, Verdict
from tests.faults.service import WORKING, Crawling

HOUR: Final = 3600
JUMPS: Final = (2 * HOUR, -3 * HOUR, 30 * HOUR, -30 * HOUR, 5 * HOUR, -HOUR)
SHIM: Final = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static volatile long *ahead;

__attribute__((constructor)) static void begin(void) {
    int file = open(getenv("CLOCK_AHEAD"), O_RDONLY);
    void *found = mmap(0, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) ahead = found;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, at);
    if (!failed && clock == CLOCK_REALTIME && ahead) at->tv_sec += *ahead;
    return failed;
}

int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""


class Clocks:
    """The wall clocks of the workers of each stage."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        compiler = shutil.which("cc")
        assert compiler, "a C compiler is needed to move the clock of a process"
        source, self._library = folder / "ahead.c", folder / "ahead.so"
        source.write_text(SHIM)
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", self._library, source, "-ldl"], check=True)
        for stage in (*WORKING, "exporter"):
            self.jump(stage, 0)

    def jump(self, stage: str, seconds: int) -> None:
        """From now on the clock of the stage's workers is so far ahead of the right time."""
        with (self._folder / stage).open("r+b" if (self._folder / stage).exists() else "wb") as file:
            file.write(struct.pack("l", seconds))

    def command(self, stage: str) -> Sequence[str]:
        """A worker that lives by that clock."""
        moved = [f"LD_PRELOAD={self._library}", f"CLOCK_AHEAD={self._folder / stage}"]
        return "env", *moved, sys.executable, "-m", "agents.cli.main", "worker", stage


def clock_jumps(bench: Bench, dose: Dose) -> Verdict:
    """`times` rounds: each kind of worker gets another time, then all are right again."""
    clocks = Clocks(bench.folder / f"{bench.line}-clocks")
    seen: dict[str, float] = {}
    with (
        bench.own_service(command=clocks.command) as service,
        bench.crawl(service, size=dose.size, hosts=16, delay=0.3) as crawl,
    ):
        crawl.reach(0.05)
        for _ in range(dose.times):
            for stage in WORKING:
                clocks.jump(stage, bench.random.choice(JUMPS))
            crawl.workers.rest(dose.seconds)
            seen |= {stage: max(seen.get(stage, 0.0), skew(crawl, stage)) for stage in ("frontier", "fetcher")}
            for stage in WORKING:
                clocks.jump(stage, 0)
            crawl.workers.rest(dose.seconds / 4)
        crawl.finish(patience=300 + 2 * dose.size * 0.3)
        verdict = crawl.verdict()
    verdict.figures |= {f"largest skew that a {stage} saw, h": round(hours / HOUR, 2) for stage, hours in seen.items()}
    for stage, seconds in seen.items():
        verdict.require(seconds > HOUR / 2, f"no {stage} noticed that its clock had jumped")
    verdict.require(not crawl.workers.deaths, f"{crawl.workers.deaths} workers ended by themselves")
    return verdict


def skew(crawl: Crawling, stage: str) -> float:
    """The largest difference from the broker's time that a worker of the stage tells of, in seconds."""
    found = (process.numbers().get("fyke_clock_skew_seconds", 0.0) for process in crawl.workers.of(stage))
    return max(map(abs, found))


LINES = (
    Line(
        "clock-jumps", "clock jumps", "lost 0; no early request; nothing stuck; audit clean",
        clock_jumps,
        Dose("wall clocks of all workers jump by 1 to 30 h, ahead and back, 6 times, 4,000 URLs", 6, 10.0, 4_000),
        Dose("wall clocks of all workers jump by 1 to 30 h and back, 1,200 URLs", times=1, seconds=8.0, size=1_200),
    ),
)  # fmt: skip
