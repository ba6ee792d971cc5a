"""Orders that are out: released and not yet answered. In memory only; after a crash waiting rows are released again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal


@dataclass(frozen=True, slots=True)
class Out:
    """One order that is out. `at` in ms; `origin` for robots orders only.

    `leg`: the file is asked for on its own host, `away` on another one (nothing is out here), or is a `guest` of ours.
    """

    host: str
    crawl: str
    visit: int
    attempt: int
    at: int
    origin: str = ""
    leg: Literal["own", "away", "guest"] = "own"
    revisit: bool = False  # of a page that holds its place already


@dataclass(slots=True)
class Released:
    """All orders that are out in a shard, oldest first, and the rate at which answers come."""

    floor: int
    seconds: float
    unparsed_limit: int = 10_000
    unparsed: int = 0
    """Pages that wait for the parser: they count against their limit together with the orders that may become some."""
    _out: dict[bytes, Out] = field(default_factory=dict)
    _rate: float = 0.0  # answers per second, smoothed
    _answered: int = 0
    _since: int = 0

    def __len__(self) -> int:
        return len(self._out)

    def __contains__(self, key: object) -> bool:
        return key in self._out

    def get(self, key: bytes) -> Out | None:
        """The order that is out for a key."""
        return self._out.get(key)

    def room(self) -> int:
        """Orders that may go out now: what can be answered in `seconds`, never fewer than `floor`.

        None while the parsers are too far behind: `pages` is kept by size and time, not until it is read.
        """
        wanted = max(self.floor, int(self._rate * self.seconds))
        return min(wanted, self.unparsed_limit - self.unparsed) - len(self._out)

    @property
    def behind(self) -> bool:
        """Whether the parsers are too far behind for anything to go out."""
        return self.unparsed + len(self._out) >= self.unparsed_limit

    def add(self, key: bytes, out: Out) -> None:
        """An order goes out."""
        self._out[key] = out

    def answer(self, key: bytes, visit: int, attempt: int) -> Out | None:
        """An answer came: the order it belongs to, None when that is not out (any more)."""
        out = self._out.get(key)
        if out is None or (out.visit, out.attempt) != (visit, attempt):
            return None
        del self._out[key]
        self._answered += 1
        return out

    def overdue(self, before: int) -> list[tuple[bytes, Out]]:
        """Take back the orders that went out before `before` (ms) and were never answered."""
        late: list[tuple[bytes, Out]] = []
        for key, out in self._out.items():
            if out.at >= before:
                break
            late.append((key, out))
        for key, _ in late:
            del self._out[key]
        return late

    def oldest(self) -> int | None:
        """When the order went out that is out the longest (ms)."""
        return next(iter(self._out.values())).at if self._out else None

    def clock_went_back(self, by: int) -> None:
        """Orders have been out for as long as they were before."""
        self._out = {key: replace(out, at=out.at - by) for key, out in self._out.items()}
        self._since -= by

    def measure(self, now: int) -> None:
        """Update the rate; called with each turn, counts at most once a second."""
        if now - self._since < 1000:
            return
        if self._since:
            rate = self._answered * 1000 / (now - self._since)
            self._rate += (rate - self._rate) / 4
        self._since, self._answered = now, 0
