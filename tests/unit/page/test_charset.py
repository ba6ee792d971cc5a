from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.page import encodings
from streams.page.charset import as_utf8, charset_of
from streams.page.prescan import declarable, from_content, prescan

RUSSIAN = "<p>Съешь же ещё этих мягких французских булок да выпей чаю. " * 5
FILL = b"<!--" + b"x" * 2000 + b"-->"


@pytest.mark.parametrize(
    ("body", "declared", "name"),
    [
        (b"\xef\xbb\xbf<p>", "windows-1252", "utf-8"),
        (b"\xff\xfe<\0", "utf-8", "utf-16le"),
        (b"\xfe\xff\0<", "", "utf-16be"),
        (b"<meta charset=gbk>", "UTF-8", "utf-8"),
        (b"<meta charset=gbk>", " utf8 ", "utf-8"),
        (b"<meta charset=gbk>", "x-unknown", "gbk"),
        (b"<meta charset=utf-16>", "", "utf-8"),
        (b"<meta charset=x-user-defined>", "", "windows-1252"),
        (b"<?xml version='1.0' encoding='koi8-r'?><html>", "", "koi8-r"),
        (b"<\0?\0x\0m\0l\0", "", "utf-16le"),
        (b"\0<\0?\0x", "", "utf-16be"),
        (b"plain ASCII", "", "windows-1252"),
        ("é".encode(), "", "utf-8"),
        ("<p>caf\u00e9 \u20ac".encode()[:-1], "", "utf-8"),
        (b"<p>caf\xe9 au lait, voil\xe0 l'\xe9t\xe9", "", "windows-1252"),
        (RUSSIAN.encode("cp1251"), "", "windows-1251"),
        (RUSSIAN.encode("koi8-r"), "", "koi8-r"),
        (b"", "", "windows-1252"),
    ],
)
def test_order_of_sources(body: bytes, declared: str, name: str) -> None:
    assert charset_of(body, declared) == name


def test_a_late_declaration_counts_where_the_tree_has_it() -> None:
    russian = RUSSIAN.encode("cp1251")
    assert charset_of(FILL + b'<meta charset="koi8-r">' + russian, "") == "koi8-r"
    assert charset_of(FILL + b'<meta charset="koi8-r">', "") == "koi8-r"
    content = b'<META HTTP-EQUIV="Content-Type" CONTENT="text/html; CHARSET=koi8-r">'
    assert charset_of(FILL + content + russian, "") == "koi8-r"
    in_script = FILL + b"<script>'<meta charset=koi8-r>'</script>"
    assert charset_of(in_script + russian, "") == "windows-1251"
    assert charset_of(FILL + b"<meta charset=nonsense>" + russian, "") == "windows-1251"


def test_plain_text_has_no_declarations() -> None:
    assert charset_of(b"<meta charset=gbk>", "", html=False) == "windows-1252"
    assert charset_of(FILL + b"<meta charset=gbk>\xe9t\xe9", "", html=False) != "gbk"


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b"<meta charset=utf-8>", "utf-8"),
        (b"<meta charset='utf-8'", None),
        (b"<meta charset='utf-8", None),
        (b"<!-- <meta charset=gbk> --><meta charset=utf-8>", "utf-8"),
        (b"<!--><meta charset=utf-8>", "utf-8"),
        (b"<p title='<meta charset=gbk>'><meta charset=utf-8>", "utf-8"),
        (b'<p><b a=1 b="2"></b x><meta/charset=utf-8>', "utf-8"),
        (b"<? <meta charset=gbk> <! > </ ><meta charset=utf-8>", "utf-8"),
        (b"<metal charset=gbk><meta charset=utf-8>", "utf-8"),
        (b"<meta charset=nonsense><meta charset=utf-8>", "utf-8"),
        (b"<meta charset=gbk charset=utf-8>", "gbk"),
        (b"<meta = charset=gbk>", "gbk"),
        (b"<meta content='text/html; charset=gbk'><meta charset=utf-8>", "utf-8"),
        (b"<meta content='text/html; charset=gbk' http-equiv=content-type>", "gbk"),
        (b"<meta http-equiv=refresh content='charset=gbk'>", None),
        (b"<3 <meta charset=gbk>", "gbk"),
        (b"<html>", None),
        (b"", None),
        (b"<?xml encoding=\"gbk\" standalone='yes'?><meta charset=utf-8>", "utf-8"),
        (b' <?xml encoding="gbk"?>', None),
        (b"<?xml encoding=gbk?>", None),
    ],
)
def test_prescan(head: bytes, name: str | None) -> None:
    assert prescan(head) == name


@pytest.mark.parametrize(
    ("content", "label"),
    [
        ("text/html; charset=utf-8", "utf-8"),
        ("charset = 'a b' ;", "a b"),
        ('CHARSET="x"y', "x"),
        ("charset='x", ""),
        ("charset charset=x;y", "x"),
        ("charset", ""),
        ("", ""),
    ],
)
def test_from_content(content: str, label: str) -> None:
    assert from_content(content) == label


@pytest.mark.parametrize(
    ("data", "name", "text"),
    [
        (b"\x80\x93\x81", "windows-1252", "\u20ac\u201c\x81"),
        (b"\xa0\xaa", "windows-1253", "\xa0\ufffd"),
        (b"\xad\xa1\xa4\xa2\xff", "euc-jp", "\u2460\u3042\ufffd"),
        (b"\xf9\xa1\xad", "euc-jp", "\u7e8a\ufffd"),
        (b"abc\x1b$)C", "replacement", "\ufffd"),
        (b"", "replacement", ""),
        (b"a\x80\xff", "x-user-defined", "a\uf780\uf7ff"),
        (b"\xef\xbb\xbfa\xff", "utf-8", "a\ufffd"),
        (b"\xff\xfea\0\0\xd8", "utf-16le", "a\ufffd"),
        (b"\xa8\xbf\x81\x40", "gbk", "\u01f9\u4e02"),
    ],
)
def test_decode_as_the_standard_does(data: bytes, name: str, text: str) -> None:
    assert encodings.decode(data, name) == text


def test_only_decoding_errors_are_handled() -> None:
    for name in ("windows-1252", "euc-jp"):
        handler = "fyke.windows-gap" if name.startswith("win") else "fyke.japanese-vendor"
        with pytest.raises(UnicodeEncodeError):
            "\u0416".encode("latin-1", handler)


def test_what_is_utf_8_is_not_touched() -> None:
    body = "<p>é".encode() + b"\xff"
    assert as_utf8(body, "utf-8") is body
    assert as_utf8(b"\xef\xbb\xbf" + body, "utf-8") == body
    ascii_body = b"<p>e"
    assert as_utf8(ascii_body, "windows-1251") is ascii_body
    assert as_utf8(b'\x1b$B$"\x1b(B', "iso-2022-jp") == "\u3042".encode()
    assert as_utf8(b"<p>\xe9", "windows-1252") == "<p>é".encode()


def test_utf_16_cannot_be_declared_inside() -> None:
    assert declarable("UTF-16") == "utf-8"
    assert declarable("nonsense") is None


@given(st.binary(max_size=500), st.sampled_from([*sorted(encodings.LABELS), "nonsense", ""]))
def test_any_bytes_have_a_text(body: bytes, declared: str) -> None:
    for html in (True, False):
        name = charset_of(body, declared, html=html)
        encodings.decode(body, name).encode()
        as_utf8(body, name)
