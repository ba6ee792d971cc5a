"""All lines, in the order of the table."""

from __future__ import annotations

from tests.faults import clocks, dead_hosts, kills, membership, network, poison, stores
from tests.faults.lines import Line

ALL: tuple[Line, ...] = (
    *kills.LINES, *membership.LINES, *stores.LINES, *poison.LINES, *dead_hosts.LINES, *network.LINES, *clocks.LINES,
)  # fmt: skip
