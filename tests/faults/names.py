"""A worker whose name service a test controls: `python -m tests.faults.names FILE worker STAGE`.

The first word of FILE: `ok` (every name leads to loopback), `fail` (the name server reports a failure) or `silent`
(it does not answer). Each look-up that fails adds a byte to FILE's neighbour `.failed`.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from agents.io.addresses import NameResolver


def main() -> None:
    """The command line, with these names."""
    from agents.cli.main import main as fyke

    control = Path(sys.argv.pop(1))

    async def lookup(_resolver: NameResolver, _host: str, _port: int) -> Sequence[str]:
        state = control.read_text().strip()  # noqa: ASYNC240 - a small file
        if state == "ok":
            return ["127.0.0.1"]
        with control.with_suffix(".failed").open("ab") as failed:
            failed.write(b".")
        if state == "silent":
            await asyncio.sleep(3600)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    NameResolver._system = lookup  # type: ignore[method-assign,assignment]  # the system's cannot be controlled
    sys.argv[0] = "fyke"
    fyke()


if __name__ == "__main__":
    main()
