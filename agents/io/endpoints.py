"""The HTTP endpoints of a worker: `/metrics` (Prometheus text), `/healthz` (restart me?) and `/readyz` (do I work?)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from aiohttp import web

from streams.errors import EnvironmentFault
from streams.metrics import CONTENT_TYPE

MAX_SKEW = 2.0
"""Seconds own clock and broker's may differ: persisted times are anchored to the broker's."""

Check = Callable[[], str]
"""Why not; empty: all is well."""


def skew_check(skew: Callable[[], float | None]) -> Check:
    """Not ready when the clock is off by `MAX_SKEW` or more; `skew` is None while unknown."""

    def check() -> str:
        seconds = skew()
        return f"the clock is off by {seconds:+.1f} s" if seconds is not None and abs(seconds) >= MAX_SKEW else ""

    return check


@asynccontextmanager
async def endpoints(
    host: str, port: int, *, metrics: Callable[[], bytes], live: Iterable[Check], ready: Iterable[Check]
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

    app = web.Application()
    app.add_routes(
        [web.get("/metrics", show_metrics), web.get("/healthz", show_live), web.get("/readyz", show_ready)]
    )  # fmt: skip
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
        yield f"http://{f'[{bound[0]}]' if ':' in bound[0] else bound[0]}:{bound[1]}"
    finally:
        await runner.cleanup()


def _verdict(checks: Iterable[Check]) -> web.Response:
    reasons = [reason for check in checks if (reason := check())]
    return web.Response(status=503 if reasons else 200, text="\n".join(reasons or ["ok"]) + "\n")
