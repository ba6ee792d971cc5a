"""What operators' commands do to rows: `redrive` opens another visit, `forget` begins a sweep (`sweeping`)."""

from __future__ import annotations

from typing import cast

from streams.frontier.candidates import next_visit
from streams.frontier.outcomes import Fault, failure_of
from streams.frontier.rows import State
from streams.frontier.turn import Turn
from streams.messages import Command, FailureClass, Next


def redrive(turn: Turn, command: Command, seq: int) -> None:
    """Open the visit that the command names for a URL that ended; a replay names a visit that is open already.

    A failure is told in `failures` that it is not final any more: that it is tried again, as after any failed attempt.
    """
    row = turn.url(command.fingerprint)
    if row is None or row.open or command.visit != row.visit + 1:
        return
    turn.tallies[command.crawl].activity += 1
    if row.state is State.FAILED:
        again = Fault(cast("FailureClass", row.outcome), f"redriven as visit {command.visit}", {})
        turn.failures.append(failure_of(row, again, Next(action="retry", at=turn.now), turn.now))
    turn.put(command.fingerprint, next_visit(row, seq, turn.now, row.depth, row.priority))
