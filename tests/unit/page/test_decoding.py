from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Callable

import brotli
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.page.decoding import FREE_EXPANSION, MAX_CODINGS, Decoder, codings

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MiB = 1 << 20
PAGE = b"<!doctype html><title>t</title><p>" + b"plain text " * 3000


def fast_brotli(data: bytes) -> bytes:
    return bytes(brotli.compress(data, quality=4))


def raw_deflate(data: bytes) -> bytes:
    squeeze = zlib.compressobj(wbits=-15)
    return squeeze.compress(data) + squeeze.flush()


ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": fast_brotli,
    "zstd": zstd.compress,
}


def run(encoding: str, wire: bytes, step: int = 0, limit: int = 10 * MiB, ratio: int = 200) -> tuple[bytes, Decoder]:
    decoder = Decoder(encoding, limit, ratio)
    step = step or max(1, len(wire))
    out = b"".join(decoder.feed(wire[at : at + step]) for at in range(0, len(wire), step))
    decoder.finish()
    assert decoder.decoded == len(out)
    return out, decoder


@pytest.mark.parametrize("step", [1, 7, 11, 0])
@pytest.mark.parametrize(("name", "encode"), [*ENCODERS.items(), ("deflate", raw_deflate)])
def test_each_coding_in_any_pieces(name: str, encode: Callable[[bytes], bytes], step: int) -> None:
    out, decoder = run(name, encode(PAGE), step)
    assert out == PAGE
    assert decoder.result == "complete"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", []),
        ("identity", []),
        (" GZip ", ["gzip"]),
        ("gzip, , deflate", ["gzip", "deflate"]),
        ("utf-8", []),
        ("gzip, none", []),
        ("compress", ["compress"]),
    ],
)
def test_names(value: str, expected: list[str]) -> None:
    assert codings(value) == expected


def test_codings_are_undone_from_the_right() -> None:
    assert run("gzip, deflate", zlib.compress(gzip.compress(PAGE)), 5)[0] == PAGE
    assert run("zstd,br", brotli.compress(zstd.compress(PAGE)), 5)[0] == PAGE


def test_the_number_of_codings_is_bounded() -> None:
    body = PAGE
    for _ in range(MAX_CODINGS):
        body = gzip.compress(body)
    assert run(", ".join(["gzip"] * MAX_CODINGS), body)[0] == PAGE
    out, decoder = run(", ".join(["gzip"] * (MAX_CODINGS + 1)), gzip.compress(body))
    assert (out, decoder.result) == (b"", "decode")


def test_a_registered_coding_that_is_not_supported_gives_nothing() -> None:
    assert run("compress", b"\x1f\x9d\x90abc")[0] == b""
    assert run("compress", b"\x1f\x9d\x90abc")[1].broken == "content coding compress is not supported"


@pytest.mark.parametrize("encoding", ["", "identity", "utf-8"])
def test_identity_is_limited_too(encoding: str) -> None:
    out, decoder = run(encoding, b"x" * 100, 30, limit=100)
    assert (len(out), decoder.result) == (100, "complete")
    out, decoder = run(encoding, b"x" * 101, 30, limit=100)
    assert (len(out), decoder.result) == (100, "length")


@pytest.mark.parametrize("step", [1, 0])
@pytest.mark.parametrize("name", ENCODERS)
def test_a_body_of_exactly_the_limit_is_complete(name: str, step: int) -> None:
    assert run(name, ENCODERS[name](PAGE), step, limit=len(PAGE))[1].result == "complete"
    out, decoder = run(name, ENCODERS[name](PAGE), step, limit=len(PAGE) - 1)
    assert (out, decoder.result) == (PAGE[:-1], "length")


@pytest.mark.parametrize("step", [1, 7, 0])
@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_members_and_frames_follow_each_other(name: str, step: int) -> None:
    encode = ENCODERS[name]
    assert run(name, encode(PAGE) + encode(b"second half"), step)[0] == PAGE + b"second half"
    assert run(name, encode(b"") + encode(PAGE) + encode(b""), step)[0] == PAGE


def test_skippable_zstd_frames() -> None:
    skippable = bytes.fromhex("502a4d18") + (3).to_bytes(4, "little") + b"abc"
    out, decoder = run("zstd", skippable + zstd.compress(PAGE) + skippable, 3)
    assert (out, decoder.result) == (PAGE, "complete")


@pytest.mark.parametrize("step", [1, 0])
@pytest.mark.parametrize("garbage", [b"\0", b"\x1f", b"\x1f\x8b", b"<!-- 3 queries -->", b"\0" * 1000])
@pytest.mark.parametrize("name", ["gzip", "deflate", "zstd"])
def test_what_follows_the_data_is_ignored(name: str, garbage: bytes, step: int) -> None:
    out, decoder = run(name, ENCODERS[name](PAGE) + garbage, step)
    assert (out, decoder.result) == (PAGE, "complete")


def test_what_follows_brotli_is_damage() -> None:
    assert run("br", brotli.compress(PAGE) + b"more", 1)[1].result == "decode"


@pytest.mark.parametrize("name", ENCODERS)
def test_a_body_cut_in_half_keeps_its_first_part(name: str) -> None:
    text = b"".join(b"line %d of the text\n" % line for line in range(50_000))
    wire = ENCODERS[name](text)
    out, decoder = run(name, wire[: len(wire) // 2], 4096)
    assert decoder.result == "decode"
    assert len(out) > 10_000
    assert text.startswith(out)


@pytest.mark.parametrize("missing", range(1, 9))
def test_a_missing_gzip_trailer_is_forgiven(missing: int) -> None:
    out, decoder = run("gzip", gzip.compress(PAGE)[:-missing])
    assert (out, decoder.result) == (PAGE, "complete")
    assert run("deflate", zlib.compress(PAGE)[: -min(missing, 4)])[1].result == "complete"


@pytest.mark.parametrize("step", [1, 0])
@pytest.mark.parametrize("name", ["gzip", "deflate"])
def test_a_wrong_check_sum_is_damage_but_the_text_is_kept(name: str, step: int) -> None:
    wire = bytearray(ENCODERS[name](PAGE))
    wire[-8 if name == "gzip" else -1] ^= 1
    out, decoder = run(name, bytes(wire), step)
    assert (out, decoder.result) == (PAGE, "decode")


@pytest.mark.parametrize("name", ["gzip", "zstd", "br", "deflate"])
def test_a_body_that_is_not_what_it_says(name: str) -> None:
    assert run(name, b"<html>" * 20)[1].result == "decode"


@pytest.mark.parametrize("name", ENCODERS)
def test_no_byte_is_an_empty_body_and_one_byte_is_none(name: str) -> None:
    assert run(name, b"")[1].result == "complete"
    assert run(name, ENCODERS[name](PAGE)[:1])[1].result == "decode"


def test_gzip_header_fields() -> None:
    member = gzip.compress(PAGE)
    fields = b"\x05\0extra" + b"name\0" + b"comment\0" + b"\0\0"
    wire = member[:3] + bytes([2 | 4 | 8 | 16]) + member[4:10] + fields + member[10:]
    for step in (1, 0):
        assert run("gzip", wire, step)[0] == PAGE
    endless = member[:3] + bytes([8]) + member[4:10] + b"n" * 200_000
    assert run("gzip", endless, 1000)[1].broken == "gzip: header too long"


@pytest.mark.parametrize("name", ENCODERS)
def test_bombs_stop_at_the_limit(name: str) -> None:
    wire = ENCODERS[name](bytes(16 * MiB))
    out, decoder = run(name, wire, 16 * 1024, ratio=10**9)
    assert (len(out), decoder.result) == (10 * MiB, "length")
    out, decoder = run(name, wire, ratio=200)
    assert decoder.result == "length"
    assert len(out) == max(FREE_EXPANSION, min(10 * MiB, 200 * len(wire)))


def test_a_bomb_between_two_layers_stops_as_well() -> None:
    inner = gzip.compress(bytes(16 * MiB), 1)
    out, decoder = run("gzip, gzip", gzip.compress(inner), ratio=200)
    assert decoder.result == "length"
    assert len(out) <= 10 * MiB
    # The intermediate form alone passes the limit: 3 MiB of empty members that unpack to nothing.
    empty = gzip.compress(gzip.compress(b"") * (3 * MiB // 20))
    assert run("gzip, gzip", empty, limit=MiB)[1].result == "length"


def test_nothing_is_decoded_after_the_stop() -> None:
    decoder = Decoder("gzip", 10, 200)
    assert len(decoder.feed(gzip.compress(PAGE))) == 10
    assert decoder.stopped
    assert decoder.feed(gzip.compress(PAGE)) == b""


@given(st.binary(max_size=300), st.sampled_from(sorted(ENCODERS)), st.integers(1, 50))
def test_any_bytes_decode_without_an_exception(data: bytes, name: str, step: int) -> None:
    run(name, data, step)
    wire = bytearray(ENCODERS[name](PAGE))
    wire[len(data) % len(wire)] ^= 0xFF
    run(name, bytes(wire), step)


@given(st.binary(max_size=2000), st.lists(st.sampled_from(sorted(ENCODERS)), max_size=3), st.integers(1, 50))
def test_round_trip(data: bytes, names: list[str], step: int) -> None:
    wire = data
    for name in names:
        wire = ENCODERS[name](wire)
    out, decoder = run(", ".join(names), wire, step)
    assert (out, decoder.result) == (data, "complete")
