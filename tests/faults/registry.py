"""All lines, in the order of the table."""

from __future__ import annotations

from tests.faults import (
    bounces,
    caught,
    clocks,
    dead_hosts,
    kills,
    membership,
    network,
    poison,
    scaling,
    soak,
    stores,
    zombie_frontier,
    zombies,
)
from tests.faults.lines import Line

ALL: tuple[Line, ...] = (
    *kills.LINES, *bounces.LINES, *zombies.LINES, *zombie_frontier.LINES, *scaling.LINES, *membership.LINES,
    *stores.LINES, *poison.LINES, *dead_hosts.LINES, *network.LINES, *clocks.LINES, *soak.LINES, *caught.LINES,
)  # fmt: skip
