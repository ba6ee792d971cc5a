"""PURE: the frontier as a sans-IO state machine per shard: messages and `now` in, rows, orders and effects out."""
