from __future__ import annotations

import pytest

from streams.page.mime import ContentType, content_type, is_html

PAGE = b"<!doctype html><title>t</title>"


@pytest.mark.parametrize(
    ("lines", "essence", "charset"),
    [
        (["text/html"], "text/html", ""),
        (["TEXT/HTML ; charset"], "text/html", ""),
        (["text/html;"], "text/html", ""),
        (["text/html; charset=utf-8; charset=ascii"], "text/html", "utf-8"),
        (['text/html; Charset=" UTF8 "'], "text/html", " UTF8 "),
        (['text/html; a="x;charset=no"; charset=yes'], "text/html", "yes"),
        (["text/html;charset=utf-8, text/html"], "text/html", "utf-8"),
        (["text/html;charset=utf-8, text/plain"], "text/plain", ""),
        (["text/plain", "text/html; charset=gbk"], "text/html", "gbk"),
        (["text/html", "nonsense"], "text/html", ""),
        (["text/html", "*/*"], "text/html", ""),
        (["application/pdf"], "application/pdf", ""),
    ],
)
def test_declared(lines: list[str], essence: str, charset: str) -> None:
    assert content_type(tuple(lines), PAGE) == ContentType(essence, charset)


@pytest.mark.parametrize("lines", [[], [""], ["html"], ["*/*"], ["text/"]])
@pytest.mark.parametrize(
    ("body", "essence"),
    [
        (PAGE, "text/html"),
        (b"\n\t <HTML>", "text/html"),
        (b"<!--x", "text/html"),
        (b"<a href=x>", "text/html"),
        (b"<abbr>", "text/plain"),
        (b" <?xml version='1.0'?>", "text/xml"),
        (b"%PDF-1.4", "application/pdf"),
        (b"\xff\xfe\0\0", "text/plain"),
        (b"words", "text/plain"),
        (b"", "text/plain"),
        (b"\0\1", "application/octet-stream"),
    ],
)
def test_sniffed_where_nothing_is_declared(lines: list[str], body: bytes, essence: str) -> None:
    assert content_type(tuple(lines), body) == ContentType(essence, "")


def test_what_is_read_as_html() -> None:
    assert is_html("text/html")
    assert is_html("application/xhtml+xml")
    assert not is_html("text/plain")
