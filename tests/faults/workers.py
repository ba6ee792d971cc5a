"""Worker processes as a person would run them: `fyke worker STAGE`, each with a state folder of its own.

The first of a stage is a static member of its group, the others are dynamic: a kill of the one is a quick restart in
its place, of the other a take-over after the session time-out.
"""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from agents.cli.configuration import override
from streams.settings import Settings, to_environment
from tests.faults.fleet import CONFIRMED, PATIENCE, SAMPLE
from tests.sites.crawling import environment

Command = Callable[[str], Sequence[str]]
Static = Callable[[str, int], bool]
"""Whether the worker of a stage with a number, from 1 on, is a static member of its group."""

SLEPT = re.compile(r"^voluntary_ctxt_switches:\s*(\d+)", re.MULTILINE)
TURN = 0.1
"""CPU seconds of the longest turn of an event loop, as a rule."""

TURNED = 5.0
"""Seconds that are waited for the end of a turn at most."""

PAUSE = 0.5
"""Seconds until a worker that ended by itself is started again, as an orchestrator would."""


def product(stage: str) -> Sequence[str]:
    """The command of a worker as it is installed."""
    return sys.executable, "-m", "agents.cli.main", "worker", stage


def first_is_static(stage: str, number: int) -> bool:
    """One static member in each group."""
    return number == 1


@dataclass(slots=True)
class Process:
    """One worker: its place, and the process that is it now. `deaths`: exit codes that nobody asked for."""

    name: str
    stage: str
    settings: Settings
    log: Path
    command: Command = product
    process: subprocess.Popen[bytes] | None = None
    wanted: bool = False
    frozen: bool = False
    deaths: list[int] = field(default_factory=list)
    _log_start: int = 0
    _again: float = 0.0

    @property
    def pid(self) -> int:
        """0 while there is none."""
        return self.process.pid if self.process is not None and self.process.poll() is None else 0

    def start(self) -> None:
        """Start it; returns at once."""
        assert not self.pid
        self.wanted, self._again = True, 0.0
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self.process = subprocess.Popen(
                self.command(self.stage), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.log.parent,
                env=environment() | to_environment(self.settings), start_new_session=True,
            )  # fmt: skip

    def signal(self, sign: signal.Signals) -> None:
        """Send a signal to the process."""
        assert self.process is not None
        self.process.send_signal(sign)
        self.frozen = sign == signal.SIGSTOP or (self.frozen and sign != signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL; it is not started again by itself."""
        self.wanted = False
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.frozen = False

    def end(self, patience: float) -> tuple[float, int]:
        """SIGTERM, and wait: seconds it took, exit code. Kills it after `patience` seconds."""
        assert self.process is not None
        self.wanted, began = False, time.monotonic()
        self.signal(signal.SIGTERM)
        try:
            code = self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.kill()
            code = -signal.SIGKILL
        return time.monotonic() - began, code

    def tend(self) -> None:
        """Start it again if it has ended although it is wanted."""
        if not self.wanted or self.process is None or self.process.poll() is None:
            return
        if not self._again:
            self.deaths.append(int(self.process.returncode))
            self._again = time.monotonic() + PAUSE
        elif time.monotonic() >= self._again:
            self.start()

    def said(self) -> str:
        """What this process has logged."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def numbers(self) -> dict[str, float]:
        """Its metrics that have at most the label `stage`; empty while it does not answer."""
        found = re.search(r"metrics and health at (\S+)", self.said())
        if not found or not self.pid or self.frozen:
            return {}
        try:
            with urlopen(f"{found[1]}/metrics", timeout=5) as answer:
                text = answer.read().decode()
        except (OSError, HTTPException):
            return {}
        return {sample[0]: float(sample[2]) for sample in SAMPLE.findall(text)}

    def serves(self, *, partitions: bool = True, since: float = -math.inf) -> bool:
        """Whether the group's coordinator confirms it, and it owns partitions if it must.

        `since`: the confirmation must not be older than that moment (by the monotonic clock).
        """
        newest = min(CONFIRMED, time.monotonic() - since)
        numbers = self.numbers()
        owns = not partitions or numbers.get("fyke_assigned_partitions", 0) > 0
        return owns and numbers.get("fyke_confirmed_age_seconds", math.inf) <= newest

    def cpu(self) -> float:
        """CPU seconds of the process that runs now."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def activity(self) -> tuple[float, int]:
        """CPU seconds of the thread of its event loop, and how often that went to sleep; of none if it has ended."""
        try:
            ran = Path(f"/proc/{self.pid}/schedstat").read_text().split()[0]
            slept = SLEPT.search(Path(f"/proc/{self.pid}/status").read_text())
        except OSError:
            return float("inf"), 0
        return int(ran) / 1e9, int(slept[1]) if slept else 0

    def wait_turned(self, mark: tuple[float, int]) -> None:
        """Return when its event loop has ended the turn in which it stood still when `mark` was its activity.

        It has if it went to sleep since, or ran for longer than turns last; a loaded machine may let it wait for that.
        """
        deadline = time.monotonic() + TURNED
        while time.monotonic() < deadline:
            ran, slept = self.activity()
            if slept > mark[1] or ran - mark[0] >= TURN:
                return
            time.sleep(0.002)

    def rss(self) -> int:
        """Resident bytes."""
        try:
            return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * 4096
        except OSError:
            return 0

    def descriptors(self) -> int:
        """Open files and sockets."""
        try:
            return sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir())
        except OSError:
            return 0


class Workers:
    """All of them. `settings`: what they have in common; `extra`: of a stage, by dotted name."""

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        counts: Mapping[str, int],
        *,
        extra: Mapping[str, Mapping[str, Any]] | None = None,
        command: Command = product,
        static: Static = first_is_static,
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._extra = extra or {}
        self._command = command
        self._static = static
        self.all: dict[str, Process] = {}
        for stage, count in counts.items():
            for _ in range(count):
                self.add(stage)

    def add(self, stage: str) -> Process:
        """One more worker of a stage, not started yet."""
        number = 1 + sum(process.stage == stage for process in self.all.values())
        name = f"{stage}-{number}"
        folder = self._folder / name
        folder.mkdir(parents=True, exist_ok=True)
        member = f"{name}" if self._static(stage, number) else ""
        own = {"worker.state": folder, "worker.name": member, "worker.port": 0, **self._extra.get(stage, {})}
        process = Process(name, stage, override(self._settings, own), folder / "log.txt", self._command)
        self.all[name] = process
        return process

    def of(self, *stages: str) -> list[Process]:
        """The workers of some stages; of all without any."""
        return [process for process in self.all.values() if not stages or process.stage in stages]

    def start(self) -> None:
        """Start all and wait until each owns partitions."""
        for process in self.all.values():
            process.start()
        self.until(self.serve, "all workers own partitions")

    def serve(self, since: float = -math.inf) -> bool:
        """Whether every worker that is wanted is confirmed (and has been since that moment) and owns partitions."""
        return all(process.serves(since=since) for process in self.all.values() if process.wanted)

    def unanswered(self) -> int:
        """Orders released and not answered, in all shards, as the frontier's workers count them now."""
        return sum(int(each.numbers().get("fyke_frontier_orders_unanswered", 0)) for each in self.of("frontier"))

    def tend(self) -> None:
        """Start again what ended by itself."""
        for process in self.all.values():
            process.tend()

    @property
    def deaths(self) -> int:
        """How often a worker ended although nobody asked for it."""
        return sum(len(process.deaths) for process in self.all.values())

    def until(self, condition: Callable[[], bool], what: str, seconds: float = PATIENCE) -> float:
        """Wait for something while workers are tended; seconds it took. AssertionError if it does not happen."""
        began = time.monotonic()
        while not condition():
            self.tend()
            assert time.monotonic() - began < seconds, f"not within {seconds:.0f} s: {what}\n{self.report()}"
            time.sleep(0.1)
        return time.monotonic() - began

    def rest(self, seconds: float) -> None:
        """Let time pass while workers are tended."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.tend()
            time.sleep(min(0.1, left))

    def busy(self, stage: str, least: int = 1) -> Process:
        """Wait for a worker of a stage that has work in flight, `least` slots of it."""
        found: list[Process] = []

        def look() -> bool:
            found[:] = [
                process
                for process in self.of(stage)
                if not process.frozen and process.numbers().get("fyke_in_flight", 0) >= least and process.serves()
            ]
            return bool(found)

        self.until(look, f"a {stage} has work in flight")
        return found[0]

    def cpu(self) -> float:
        """CPU seconds of all that run now."""
        return sum(process.cpu() for process in self.all.values())

    def report(self, lines: int = 6) -> str:
        """What each said last."""
        logs = {name: process.log for name, process in self.all.items() if process.log.exists()}
        return "\n".join(
            f"== {name} ({self.all[name].pid or 'not running'}, deaths {self.all[name].deaths})\n"
            + "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
            for name, log in logs.items()
        )

    def finish(self) -> None:
        """End all at once."""
        for process in self.all.values():
            process.kill()
