"""Sizes and durations on the command line."""

from __future__ import annotations

import click
import pytest

from agents.cli.quantities import Duration, Size


@pytest.mark.parametrize(
    ("text", "size"),
    [("500", 500), ("0", 0), ("7b", 7), ("20k", 20_000), ("20 KB", 20_000), ("1.5MB", 1_500_000), ("2G", 2 * 10**9),
     ("1KiB", 1024), ("1.5MiB", 1_572_864), ("2GiB", 2 * 1024**3), ("1TiB", 1024**4), ("3t", 3 * 10**12)],
)  # fmt: skip
def test_sizes(text: str, size: int) -> None:
    assert Size().convert(text, None, None) == size


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("45s", 45), ("1.5m", 90), ("2h", 7200), ("1D", 86_400), (30.0, 30)]
)
def test_durations(text: object, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize("kind", [Size(), Duration()])
@pytest.mark.parametrize("text", ["", "x", "-1", "5 apples", "1e3", "ib", "1..2"])
def test_what_is_neither_is_refused_with_an_example(kind: click.ParamType, text: str) -> None:
    with pytest.raises(click.BadParameter, match="Write it as"):
        kind.convert(text, None, None)
