"""`fyke crawl` as a person runs it: a child process with its own state and output folders."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FYKE = Path(sys.executable).parent / "fyke"


@dataclass(frozen=True, slots=True)
class Crawl:
    """Where a crawl lives, so that it can be gone on with."""

    folder: Path

    @property
    def out(self) -> Path:
        return self.folder / "out"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def command(self, *arguments: str) -> list[str]:
        """`fyke …` with this crawl's state folder."""
        return [str(FYKE), *arguments, "--state", str(self.state)]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command in a process group of its own; its output goes to `log.txt`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "log.txt").open("ab") as log:
            return subprocess.Popen(
                self.command(*arguments),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=self.folder,
                env=environment(),
                start_new_session=True,
            )

    def crawl(self, urls: Sequence[str], *options: str, timeout: float) -> int:
        """Crawl `urls` to the end and return the exit code; kills the process group at the time-out (seconds)."""
        process = self.start("crawl", *urls, "--out", str(self.out), "--allow-private", *options)
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            raise AssertionError(f"not ended after {timeout:.0f} s:\n{self.log_end()}") from None

    def log_end(self, lines: int = 40) -> str:
        """The last lines the commands printed."""
        text = (self.folder / "log.txt").read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-lines:])


def environment() -> dict[str, str]:
    """This process' environment without settings of Fyke, so that a test runs on defaults; the cache folder stays."""
    return {k: v for k, v in os.environ.items() if not k.startswith("FYKE_") or k == "FYKE_WORKER_CACHE"}
