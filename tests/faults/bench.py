"""What lines share: the three brokers, the server, one standing service. Each is made when the first line asks for it.

Lines of the same run crawl on the same service one after the other, each a site of its own under names of its own: as
in real life, what one did is still there when the next begins. A line that does not hold leaves nothing to the next.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.faults.checker import Limits
from tests.faults.cluster import Cluster, three_brokers
from tests.faults.server import Sites, sites
from tests.faults.service import Crawling, Service, crawling, service
from tests.faults.site import Site


class Bench:
    """For `with`. `folder` takes everything; `random` and `seed` are the line's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.line = ""
        self.seed = ""
        self.random = random.Random()
        self._number = 0
        self._shared = ExitStack()
        self._made: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.renew()

    def turn_to(self, line: str, seed: str) -> None:
        """The next line begins."""
        self.line, self.seed = line, seed
        self.random = random.Random(f"{seed} {line}")

    def renew(self) -> None:
        """End all that is shared: the next line starts anew."""
        self._made.clear()
        shared, self._shared = self._shared, ExitStack()
        shared.close()

    @property
    def web(self) -> Sites:
        """The server."""
        found: Sites = self._once("web", lambda: sites(self.new_folder("web")))
        return found

    @property
    def cluster(self) -> Cluster:
        """The three brokers."""
        found: Cluster = self._once("cluster", lambda: three_brokers(self.new_folder("kafka")))
        return found

    @property
    def service(self) -> Service:
        """The standing service; all of its workers are confirmed and own partitions when this returns."""
        found: Service = self._once("service", self.own_service)
        for process in found.workers.all.values():
            if not process.pid:
                process.start()
        found.workers.until(found.workers.serve, "the standing workers own partitions")
        return found

    def own_service(self, settings: Mapping[str, Any] | None = None, **options: Any) -> AbstractContextManager[Service]:
        """A service of a line's own on the shared brokers; see `tests.faults.service.service`."""
        folder = self.new_folder("service")
        return service(self.cluster, folder, f"{folder.name}.", settings, web=self.web, **options)

    @contextmanager
    def crawl(
        self, on: Service, *, size: int, hosts: int = 8, delay: float = 0.05, parallelism: int = 2, pause: float = 0.0,
        coded: bool = False, **definition: Any,
    ) -> Iterator[Crawling]:  # fmt: skip
        """A crawl of a new site of about `size` pages."""
        self._number += 1
        name = f"{self.line}-{self._number}"
        site = Site(
            f"{name}.test", self.random.randrange(1 << 32), hosts, max(1, size // hosts), pause=pause, coded=coded
        )
        limits = Limits(delay, parallelism)
        with crawling(on, self.new_folder(name), site, limits, name, self.web, **definition) as crawl:
            yield crawl

    def _once(self, what: str, make: Callable[[], AbstractContextManager[Any]]) -> Any:
        if what not in self._made:
            self._made[what] = self._shared.enter_context(make())
        return self._made[what]

    def new_folder(self, name: str) -> Path:
        """A folder that nobody else has."""
        number = 1
        while (path := self.folder / f"{name}-{number}").exists():
            number += 1
        path.mkdir()
        return path
