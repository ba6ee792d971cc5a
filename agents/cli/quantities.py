"""Sizes and durations as people write them on the command line."""

from __future__ import annotations

import re
from typing import Any, Final

import click

_NUMBER: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)
_BYTES: Final = {"": 1, "b": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


class Size(click.ParamType):
    """A number of bytes: `500`, `20k`, `1.5MB`, `2GiB` (1024³)."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The bytes; fails with an example."""
        found = _NUMBER.fullmatch(str(value).strip())
        unit = found[2].lower() if found else ""
        binary = unit.endswith("ib")
        unit = unit.removesuffix("ib") if binary else unit if unit == "b" else unit.removesuffix("b")
        if found is None or unit not in _BYTES:
            self.fail(f"{value!r} is no size. Write it as 500k, 20MB or 2GiB.", param, ctx)
        factor = _BYTES[unit]
        if binary:
            factor = 1024 ** round(len(str(factor)) / 3)
        return round(float(found[1]) * factor)


class Duration(click.ParamType):
    """Seconds: `90`, `45s`, `30m`, `2h`, `1d`."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The seconds; fails with an example."""
        found = _NUMBER.fullmatch(str(value).strip())
        if found is None or found[2].lower() not in _SECONDS:
            self.fail(f"{value!r} is no duration. Write it as 90s, 30m, 2h or 1d.", param, ctx)
        return float(found[1]) * _SECONDS[found[2].lower()]
