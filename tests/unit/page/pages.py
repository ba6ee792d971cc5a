"""Pages for the tests of this folder."""

from __future__ import annotations

from streams.messages import PageHeaders


def page(url: str = "http://a.test/dir/p?q=1", *headers: tuple[str, str], kind: str = "text/html") -> PageHeaders:
    """The facts of a page; `headers` come after its Content-Type."""
    return PageHeaders(
        crawl="c", url=url, fingerprint=bytes(16), visit=1, shard=0, status=200,
        headers=[("Content-Type", kind), *headers], start=1, first_byte=2, end=3,
    )  # fmt: skip
