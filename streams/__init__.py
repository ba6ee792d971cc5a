"""What flows, what is remembered and what is decided. Imports nothing from `agents`.

Reading order: `topics` (what flows), `messages` (what a message holds), `frontier.shard` (what is decided),
`state.table` (what is remembered), `app` (the frame it runs in). `policy`, `page` and `frontier` are pure: values and
`now` in, decisions out.
"""
