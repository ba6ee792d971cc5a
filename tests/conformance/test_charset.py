"""The declared encoding of pages (html5lib's prescan cases) and the labels of the Encoding Standard."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from streams.page import encodings
from streams.page.charset import charset_of
from tests.conformance import cases

PRESCAN = ("tests1.dat", "tests2.dat", "test-yahoo-jp.dat")
LABELS = [
    (label, encoding["name"])
    for group in cases.data("encoding/encodings.json")
    for encoding in group["encodings"]
    for label in encoding["labels"]
]


def blocks() -> Iterator[Any]:
    for name in PRESCAN:
        data = cases.file(f"encoding/html5lib/{name}").read_bytes()
        for number, block in enumerate(re.split(rb"(?:^|\n)#data\n", data)[1:]):
            page, _, encoding = block.partition(b"\n#encoding\n")
            yield pytest.param(page, encoding.split(b"\n")[0].decode().strip().lower(), id=f"{name}-{number}")


@pytest.mark.parametrize(("page", "encoding"), list(blocks()))
def test_prescan(page: bytes, encoding: str) -> None:
    assert charset_of(page, "") == encoding


def test_all_blocks_are_there() -> None:
    assert len(list(blocks())) == 82


@pytest.mark.parametrize(("label", "name"), LABELS)
def test_labels(label: str, name: str) -> None:
    for written in (label, label.upper(), f"\t {label}\n"):
        assert encodings.lookup(written) == name.lower()


def test_there_are_no_other_labels() -> None:
    assert encodings.LABELS.keys() == {label for label, _ in LABELS}
    assert len(LABELS) == 228
