"""Encodings that nobody declared: chardet's collection of feeds and pages. A rate, held as a floor."""

from __future__ import annotations

import tarfile
from functools import cache

from streams.page import encodings
from streams.page.charset import charset_of
from tests.conformance import cases

FLOOR = 386
"""Files whose text comes out right, of the 424 that Python can check. The misses: encodings that are not in the
Encoding Standard (IBM855, Johab, UTF-32, ISO-2022-KR), UTF-16 without a mark, and six others."""


@cache
def files() -> list[tuple[str, str, bytes]]:
    manifest = cases.data("encoding/chardet-tests.manifest.json")
    codecs = {folder["folder"]: folder["python_codec"] for folder in manifest["folders"] if folder["python_codec"]}
    found = []
    with tarfile.open(cases.file("encoding/chardet-tests.tar.xz")) as archive:
        for member in archive:
            folder = member.name.rpartition("/")[0].rpartition("/")[2]
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None and folder in codecs:
                found.append((member.name, codecs[folder], content.read()))
    return found


def right(data: bytes, codec: str) -> bool:
    """Python and the standard map a few characters of the East Asian sets differently; either text will do."""
    found = encodings.decode(data, charset_of(data, "", html=False))
    standard = encodings.lookup(codec.replace("_", "-"))
    if found == data.decode(codec).removeprefix("\ufeff"):
        return True
    return standard is not None and found == encodings.decode(data, standard)


def test_rate() -> None:
    missed: dict[str, int] = {}
    for _, codec, data in files():
        if not right(data, codec):
            missed[codec] = missed.get(codec, 0) + 1
    count = len(files())
    assert count == 424
    assert count - sum(missed.values()) >= FLOOR, missed
