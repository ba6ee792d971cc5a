"""All lines, in the order of the table."""

from __future__ import annotations

from tests.faults import kills, stores
from tests.faults.lines import Line

ALL: tuple[Line, ...] = (*kills.LINES, *stores.LINES)
