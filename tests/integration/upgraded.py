"""`fyke` as its next release would be: it reads schema 2, and writes schema 1 as long as others may not read it."""

from __future__ import annotations

from agents.cli.main import main
from streams import messages

messages.NEWEST = 2

if __name__ == "__main__":
    main()
