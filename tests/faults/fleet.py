"""A crawl by the installed command whose worker processes a test watches, kills, freezes and thaws."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import msgspec

from agents.io.broker import EmbeddedBroker
from agents.io.process import identity
from streams.topics import shard_of
from tests.kafka import settings_for
from tests.sites.crawling import Crawl

STAGES = ("frontier", "fetcher", "parser", "exporter")
PATIENCE = 240.0
"""Seconds for anything that must happen; a loaded machine is slow, and only a hang should take so long."""

CONFIRMED = 5.0
"""Seconds since the last accepted heartbeat within which a worker surely has been back since it was frozen."""

SAMPLE = re.compile(r'^(\w+)(?:\{stage="([^"]*)"[^}]*\})? (\S+)$', re.MULTILINE)


def host_names(count: int, shards: int = 4, domain: str = "test") -> tuple[str, ...]:
    """`count` names of hosts below `domain`, the same number in every shard."""
    names: list[str] = []
    number = 0
    while len(names) < count:
        number += 1
        name = f"host{number}.{domain}"
        if shard_of(name, shards) == len(names) % shards:
            names.append(name)
    return tuple(names)


def until(condition: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
    """Wait for something that other processes do."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.02)


@dataclass(frozen=True, slots=True)
class Busy:
    """A worker that was seen at work: `in_flight` slots taken and not acked, `assigned` partitions owned."""

    name: str
    pid: int
    in_flight: int
    assigned: int

    def signal(self, sign: signal.Signals) -> None:
        os.kill(self.pid, sign)

    def __str__(self) -> str:
        return f"{self.name} with {self.in_flight} in flight in {self.assigned} partitions"


@dataclass
class Fleet:
    """A crawl and its workers."""

    crawl: Crawl
    workers: int
    process: subprocess.Popen[str] | None = None
    frozen: list[Busy] = field(default_factory=list)

    def start(self, *arguments: str) -> None:
        """Start `fyke crawl …` or `fyke resume …`."""
        self.process = self.crawl.start(*arguments)

    def end(self, expected: int = 0, seconds: float = PATIENCE) -> str:
        """Wait for the command and return all it printed. Fails unless it ends with `expected`."""
        assert self.process is not None
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not ended after {seconds:.0f} s:\n{self.report()}") from None
        assert code == expected, f"exit code {code}:\n{self.report()}"
        return self.log

    @property
    def log(self) -> str:
        return (self.crawl.folder / "log.txt").read_text(encoding="utf-8", errors="replace")

    def report(self) -> str:
        """What the command and its workers said last."""
        logs = sorted((self.crawl.state / "logs").glob("*.log"))
        return "\n".join([self.crawl.log_end(), *(f"== {log.name}\n{_tail(log)}" for log in logs)])

    def names(self, stage: str) -> list[str]:
        """The workers of a stage."""
        return [f"{stage}-{n + 1}" for n in range(1 if stage == "exporter" else self.workers)]

    def pid(self, name: str) -> int:
        """The process of a worker now, 0 between two of them."""
        try:
            pid = int((self.crawl.state / "workers" / name / "worker").read_text())
        except (OSError, ValueError):
            return 0
        return pid if identity(pid) else 0

    def numbers(self, name: str) -> dict[str, float]:
        """A worker's metrics that have at most the label `stage`; empty while it does not answer."""
        urls = re.findall(r"metrics and health at (\S+)", _tail(self.crawl.state / "logs" / f"{name}.log", 1 << 20))
        if not urls:
            return {}
        try:
            with urlopen(f"{urls[-1]}/metrics", timeout=5) as answer:
                text = answer.read().decode()
        except (OSError, HTTPException):
            return {}
        return {found[0]: float(found[2]) for found in SAMPLE.findall(text)}

    def busy(self, stage: str, seconds: float = PATIENCE, *, least: int = 1) -> Busy:
        """Wait for a worker of the stage that owns partitions and has work in flight, `least` slots of it."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.check_running()
            for name in self.names(stage):
                pid, numbers = self.pid(name), self.numbers(name)
                busy = Busy(
                    name, pid, int(numbers.get("fyke_in_flight", 0)), int(numbers.get("fyke_assigned_partitions", 0))
                )
                if pid and busy.in_flight >= least and busy.assigned and busy not in self.frozen:
                    return busy
        raise AssertionError(f"no {stage} had work in flight within {seconds:.0f} s:\n{self.report()}")

    def serves(self, stage: str) -> bool:
        """Whether all workers of a stage own partitions and are confirmed by the group's coordinator."""
        for name in self.names(stage):
            numbers = self.numbers(name)
            age = numbers.get("fyke_confirmed_age_seconds", 1e9)
            if not self.pid(name) or not numbers.get("fyke_assigned_partitions") or age > CONFIRMED:
                return False
        return True

    def unanswered(self) -> int:
        """Orders released and not answered, in all shards, as the frontier's workers count them now."""
        return sum(int(self.numbers(name).get("fyke_frontier_orders_unanswered", 0)) for name in self.names("frontier"))

    def check_running(self) -> None:
        """Fail if the crawl has ended: what was to happen in its middle cannot happen any more."""
        assert self.process is not None
        assert self.process.poll() is None, f"the crawl ended too early:\n{self.report()}"

    def until(self, condition: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
        """Wait for something that happens while the crawl runs."""

        def happened() -> bool:
            if condition():
                return True
            self.check_running()
            return False

        until(happened, what, seconds)

    def kill(self, busy: Busy) -> None:
        """SIGKILL; returns when the supervisor has started the worker again."""
        busy.signal(signal.SIGKILL)
        self.until(lambda: self.pid(busy.name) not in (0, busy.pid), f"{busy.name} is started again")

    def freeze(self, busy: Busy) -> None:
        """SIGSTOP."""
        busy.signal(signal.SIGSTOP)
        self.frozen.append(busy)

    def thaw(self) -> None:
        """SIGCONT to all that are frozen."""
        while self.frozen:
            self.frozen.pop().signal(signal.SIGCONT)

    def finish(self) -> None:
        """End what still runs, however the test went: thaw, kill the command, its workers and its broker."""
        for worker in self.frozen:
            if identity(worker.pid):
                worker.signal(signal.SIGCONT)
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for stage in STAGES:
            for name in self.names(stage):
                if pid := self.pid(name):
                    os.kill(pid, signal.SIGKILL)
        self.broker().stop(force=True)

    def broker(self) -> EmbeddedBroker:
        """The crawl's own broker."""
        return EmbeddedBroker(settings_for(self.crawl.state))


@contextmanager
def fleet(folder: Path, workers: int = 1, settings: Mapping[str, Mapping[str, Any]] | None = None) -> Iterator[Fleet]:
    """A crawl in `folder` with `settings` by group and name (a `fyke.toml` in its working folder)."""
    folder.mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    for group, values in (settings or {}).items():
        lines += [f"[{group}]", *(f"{name} = {msgspec.json.encode(value).decode()}" for name, value in values.items())]
    (folder / "fyke.toml").write_text("\n".join([*lines, ""]))
    ours = Fleet(Crawl(folder), workers)
    try:
        yield ours
    finally:
        ours.finish()


def arguments(seeds: Sequence[str], ours: Fleet, connect_to: Sequence[str], *options: str) -> list[str]:
    """The command line of a crawl of sites under names that lead to loopback."""
    return [
        "crawl", *seeds, "--out", str(ours.crawl.out), "--allow-private", "--workers", str(ours.workers), *connect_to,
        *options,
    ]  # fmt: skip


def _tail(path: Path, size: int = 3000) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
