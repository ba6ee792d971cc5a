"""The HTTP endpoints of a worker, and who asks them.

`/metrics` (Prometheus text), `/healthz` (restart me?), `/readyz` (do I work?); of a frontier worker also `/why` with
the parameters `crawl`, `url` and `epoch` (JSON: `streams.frontier.explain`; 404 where the shard is another's).
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from aiohttp import ClientError, ClientSession, ClientTimeout, web

from streams.errors import EnvironmentFault, MessageError
from streams.metrics import CONTENT_TYPE

MAX_SKEW = 2.0
"""Seconds own clock and broker's may differ: persisted times are anchored to the broker's."""

ANSWER_WITHIN = 3.0
"""Seconds a worker has to say why: it may be in the middle of a turn."""

Check = Callable[[], str]
"""Why not; empty: all is well."""

Why = Callable[[str, str, int], bytes | None]
"""Crawl, URL and epoch of its shard to JSON; None: this worker does not own it. Raises `MessageError`."""


def skew_check(skew: Callable[[], float | None]) -> Check:
    """Not ready when the clock is off by `MAX_SKEW` or more; `skew` is None while unknown."""

    def check() -> str:
        seconds = skew()
        return f"the clock is off by {seconds:+.1f} s" if seconds is not None and abs(seconds) >= MAX_SKEW else ""

    return check


@asynccontextmanager
async def endpoints(
    host: str,
    port: int,
    *,
    metrics: Callable[[], bytes],
    live: Iterable[Check],
    ready: Iterable[Check],
    why: Why | None = None,
) -> AsyncIterator[str]:
    """Serve during the block; gives the URL. `port` 0 takes a free one.

    That `/healthz` is answered shows that the event loop turns. Raises `EnvironmentFault` if the port is taken.
    """
    lives, readies = tuple(live), tuple(ready)

    async def show_metrics(_: web.Request) -> web.Response:
        return web.Response(body=metrics(), headers={"Content-Type": CONTENT_TYPE})

    async def show_live(_: web.Request) -> web.Response:
        return _verdict(lives)

    async def show_ready(_: web.Request) -> web.Response:
        return _verdict(readies)

    async def show_why(request: web.Request) -> web.Response:
        return _explained(why, request)

    app = web.Application()
    app.add_routes([
        web.get("/metrics", show_metrics), web.get("/healthz", show_live), web.get("/readyz", show_ready),
        web.get("/why", show_why),
    ])  # fmt: skip
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            raise EnvironmentFault(
                f"port taken: {host}:{port} ({error.strerror})",
                "Choose another with FYKE_WORKER_PORT, or 0 for a free one.",
            ) from error
        bound = runner.addresses[0]
        yield f"http://{_reachable(bound[0])}:{bound[1]}"
    finally:
        await runner.cleanup()


def advertised(url: str, name: str) -> str:
    """The URL under which others reach the endpoints at `url`: `name` is the host, or host:port, that they know.

    An IPv6 address with a port stands in brackets. `name` empty: they reach it as it listens.
    """
    if not name:
        return url
    if name.count(":") > 1 and not name.startswith("["):
        name = f"[{name}]"
    has_port = name.rpartition(":")[2].isdigit() and not name.endswith("]")
    return f"http://{name}" if has_port else f"http://{name}:{url.rpartition(':')[2]}"


async def ask_why(worker: str, crawl: str, url: str, epoch: int) -> bytes | None:
    """What the worker at `worker` (its URL) says of a URL, as JSON; None: it is gone, or no longer the owner."""
    asked = {"crawl": crawl, "url": url, "epoch": str(epoch)}
    try:
        async with (
            ClientSession(timeout=ClientTimeout(total=ANSWER_WITHIN)) as session,
            session.get(f"{worker}/why", params=asked) as response,
        ):
            return await response.read() if response.status == 200 else None
    except (ClientError, OSError, TimeoutError, ValueError):
        return None


def _explained(why: Why | None, request: web.Request) -> web.Response:
    asked = request.query
    try:
        found = why(asked["crawl"], asked["url"], int(asked["epoch"])) if why is not None else None
    except (KeyError, ValueError):
        return web.Response(status=400, text="give crawl, url and epoch\n")
    except MessageError as error:
        return web.Response(status=400, text=f"{error.reason}\n")
    if found is None:
        return web.Response(status=404, text="the shard of this URL is another worker's\n")
    return web.Response(body=found, content_type="application/json")


def _reachable(address: str) -> str:
    """An address that others can connect to: that of the machine where the worker listens on all of its addresses."""
    if address in {"0.0.0.0", "::"}:  # noqa: S104 - compared, not bound
        try:
            address = socket.gethostbyname(socket.gethostname())
        except OSError:
            address = "127.0.0.1"
    return f"[{address}]" if ":" in address else address


def _verdict(checks: Iterable[Check]) -> web.Response:
    reasons = [reason for check in checks if (reason := check())]
    return web.Response(status=503 if reasons else 200, text="\n".join(reasons or ["ok"]) + "\n")
