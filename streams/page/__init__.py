"""PURE: bytes of a page in, facts out (decoding, charset, links, directives, metadata, fingerprints)."""
