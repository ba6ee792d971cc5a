"""PURE: the rules of polite crawling (URLs, scope, robots, limits, retries). Values and `now` in, decisions out."""
