"""What a page says, in 16 bytes."""

from __future__ import annotations

from hashlib import blake2b


def content_fingerprint(title: str, text: str) -> bytes:
    """BLAKE2b (RFC 7693) of title, NUL, text: equal for pages that read the same, whatever their markup."""
    digest = blake2b(title.encode(), digest_size=16)
    digest.update(b"\0")
    digest.update(text.encode())
    return digest.digest()
