"""Every error Fyke raises on purpose, and the exit codes of the command line.

Two families. `FykeError` is for people: its text says what is wrong and what to do, and reaches the terminal without a
traceback. Everything that goes wrong with a *site* is not an exception but a failure class (`streams.policy.retry`).
"""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of `fyke` (documented in the README)."""

    ENDED = 0
    NO_PAGE = 1
    USAGE = 2
    ENVIRONMENT = 3
    LIMIT = 4
    BROKEN = 5
    CONFLICT = 6
    CANCELLED = 7
    INTERRUPTED = 130


class FykeError(Exception):
    """Something a person can mend: `problem` says what is wrong, `remedy` what to do."""

    exit_code = Exit.ENVIRONMENT

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.problem}\n  {self.remedy}" if self.remedy else self.problem


class UsageError(FykeError):
    """The command was called with arguments that do not fit together."""

    exit_code = Exit.USAGE


class ConflictError(FykeError):
    """Somebody else's change came first: nothing was changed."""

    exit_code = Exit.CONFLICT


class EnvironmentFault(FykeError):
    """The machine or a service lacks something: no Java, port taken, broker away, disk full."""


class SettingsError(FykeError):
    """A setting cannot be read; the text names the setting and where it came from."""


class MessageError(FykeError):
    """A message cannot be read. Costs one message: it becomes a `failures` record."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


class NewerSchemaError(FykeError):
    """An internal message was written by a newer release. Stops the worker: skipping it would lose work."""


class StateError(FykeError):
    """A store cannot be used, and only a person can say whether it may be rebuilt from what the changelog has."""


class DamagedError(StateError):
    """A store was found damaged while it was in use. Starting again mends it, so a supervisor should."""

    exit_code = Exit.BROKEN


class OwnershipLost(Exception):
    """The partition moved to another worker; the caller drops what it was about to do."""
