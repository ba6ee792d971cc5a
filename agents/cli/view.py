"""What a person sees of a crawl: a live panel in a terminal, plain lines elsewhere, a summary at the end."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from streams.messages import CrawlCounts

NOTHING = CrawlCounts()
_WINDOW = 10.0  # seconds over which rates are measured
_PLAIN_PERIOD = 5.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A crawl at one moment. `elapsed` in seconds since the command started."""

    name: str
    phase: str
    elapsed: float
    counts: CrawlCounts = NOTHING
    limit: int | None = None

    @property
    def waiting(self) -> int:
        """URLs that no fetcher has been asked for yet."""
        return max(0, self.counts.open - self.counts.released - self.counts.fetched)


class Rates:
    """Pages per second and the time left, from the last snapshots."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int]] = deque()

    def add(self, snapshot: Snapshot) -> None:
        """Take a later snapshot into account."""
        counts = snapshot.counts
        self._seen.append((snapshot.elapsed, counts.done + counts.fetched, counts.open))
        while len(self._seen) > 2 and snapshot.elapsed - self._seen[0][0] > _WINDOW:
            self._seen.popleft()

    @property
    def pages(self) -> float:
        """Pages fetched per second over the window; 0.0 while unknown."""
        return self._per_second(1)

    def left(self, snapshot: Snapshot) -> float | None:
        """Seconds until the end where they can be known: a page limit is near, or less is waiting than before."""
        counts, pages = snapshot.counts, self.pages
        if snapshot.limit is not None and pages > 0 and counts.open:
            return max(0, snapshot.limit - counts.done) / pages
        shrinking = -self._per_second(2)
        return counts.open / shrinking if shrinking > 0.5 else None

    def _per_second(self, column: int) -> float:
        if len(self._seen) < 2:
            return 0.0
        first, last = self._seen[0], self._seen[-1]
        return (last[column] - first[column]) / max(1e-3, last[0] - first[0])


class View(Protocol):
    """Shows what happens while a crawl runs."""

    def say(self, line: str) -> None:
        """Something happened that a person should read."""

    def show(self, snapshot: Snapshot) -> None:
        """The state of the crawl, several times a second."""

    def close(self) -> None:
        """Nothing more will be shown."""


class PlainView:
    """For pipes and logs: a line now and then."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rates = Rates()
        self._shown = 0.0
        self._last = ""

    def say(self, line: str) -> None:
        """Print the line."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def show(self, snapshot: Snapshot) -> None:
        """Print a line every few seconds, if something changed."""
        self._rates.add(snapshot)
        line = status_line(snapshot, self._rates)
        if snapshot.elapsed - self._shown >= _PLAIN_PERIOD and line != self._last and snapshot.counts.activity:
            self._shown, self._last = snapshot.elapsed, line
            self.say(f"{clock(snapshot.elapsed):>6}  {line}")

    def close(self) -> None:
        """Nothing to do."""


class LiveView:
    """For terminals: a panel that is drawn again in place."""

    def __init__(self, console: Console) -> None:
        self._rates = Rates()
        self._live = Live(console=console, refresh_per_second=8, transient=True)
        self._live.start()

    def say(self, line: str) -> None:
        """Print the line above the panel."""
        self._live.console.print(line, markup=False, highlight=False)

    def show(self, snapshot: Snapshot) -> None:
        """Draw the panel."""
        self._rates.add(snapshot)
        self._live.update(panel(snapshot, self._rates))

    def close(self) -> None:
        """Remove the panel."""
        self._live.stop()


def status_line(snapshot: Snapshot, rates: Rates) -> str:
    """The crawl in one line."""
    counts = snapshot.counts
    parts = [
        f"{counts.done + counts.fetched:,} pages",
        f"{rates.pages:.1f}/s",
        f"{snapshot.waiting:,} waiting",
        f"{counts.released:,} in flight",
        f"{counts.failed:,} failed",
        f"{counts.hosts:,} host{'' if counts.hosts == 1 else 's'} with work",
    ]
    if counts.due:
        parts.append(f"{counts.due:,} to be visited again")
    left = rates.left(snapshot)
    if left is not None:
        parts.append(f"about {clock(left)} left")
    return "  ".join(parts)


def panel(snapshot: Snapshot, rates: Rates) -> Group:
    """The live panel."""
    counts, left = snapshot.counts, rates.left(snapshot)
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(justify="right")
    grid.add_column(style="dim")
    grid.add_column(justify="right")
    grid.add_row("pages", f"{counts.done + counts.fetched:,}", "per second", f"{rates.pages:.1f}")
    grid.add_row("waiting", f"{snapshot.waiting:,}", "in flight", f"{counts.released:,}")
    grid.add_row("failed", f"{counts.failed:,}", "excluded", f"{counts.excluded:,}")
    grid.add_row("hosts with work", f"{counts.hosts:,}", "left", f"about {clock(left)}" if left is not None else "")
    title = Text.assemble((snapshot.name, "bold"), "  ", (snapshot.phase, "cyan"), "  ", clock(snapshot.elapsed))
    failures = Text(f"failures: {tallied(counts.failures)}", style="dim") if counts.failures else Text("")
    return Group(title, grid, failures)


def summary(
    snapshot: Snapshot, result: str, folder: Path, lines: dict[str, int], *, before: int = 0, restarts: int = 0
) -> str:
    """The closing report.

    `lines`: how many each output file has; `result`: as in the crawl's definition; `before`: pages of earlier runs.
    """
    counts, seconds = snapshot.counts, max(snapshot.elapsed, 1e-3)
    ending = {"exhausted": "everything in reach was fetched", "limit": "the page limit was reached",
              "size": "its pages have as many bytes as they may", "deadline": "its time was over",
              "cancelled": "somebody cancelled it"}.get(result, result)  # fmt: skip
    here = f", {counts.done - before:,} of them" if before else ""
    rows = [
        ("pages", f"{counts.done:,}{here} in {clock(seconds)} ({(counts.done - before) / seconds:.1f}/s)"),
        ("failed", _with_classes(counts.failed, counts.failures)),
        ("excluded", _with_classes(counts.excluded, counts.exclusions)),
    ]
    if counts.sitemaps:
        rows.append(("sitemaps", f"{counts.sitemaps:,} read"))
    if counts.redirected:
        rows.append(("redirected", f"{counts.redirected:,}"))
    if restarts:
        rows.append(("restarts", f"{restarts} of worker processes"))
    rows += [(name.partition(".")[0], f"{folder / name} ({count:,})") for name, count in lines.items()]
    body = "\n".join(f"  {label:<11}{text}" for label, text in rows)
    return f"Crawl {snapshot.name}: {ending}\n{body}"


def _with_classes(total: int, classes: dict[str, int]) -> str:
    return f"{total:,} ({tallied(classes)})" if classes else f"{total:,}"


def tallied(classes: dict[str, int]) -> str:
    """`timeout 3, dns 1`: the most frequent first."""
    return ", ".join(
        f"{name} {count:,}" for name, count in sorted(classes.items(), key=lambda item: (-item[1], item[0]))
    )


def clock(seconds: float) -> str:
    """A duration for people: `4.2 s`, `3:07`, `1:02:03`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
