"""The journal of seeds: what is to be accepted is on the disk before Kafka hears of it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


class Journal:
    """A file with a URL in each line. Outside Kafka, so that it can tell what Kafka lost."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, urls: Iterable[str]) -> None:
        """Append seeds; on return they are durable."""
        with self._path.open("a", encoding="utf-8") as file:
            file.writelines(f"{url}\n" for url in urls)
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> list[str]:
        """All seeds that were noted."""
        return self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []
