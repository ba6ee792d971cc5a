"""What went wrong before an answer came, in the failure classes of `streams.messages.FailureClass`."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import aiohttp

from agents.io.addresses import AddressRefused
from streams.policy.retry import NO_SUCH_NAME

if TYPE_CHECKING:
    from streams.messages import FailureClass


class Unanswered(aiohttp.ClientError):
    """The connection broke before an answer. Its class keeps aiohttp from sending the request a second time."""


def classify(error: BaseException) -> tuple[FailureClass, dict[str, str]]:
    """The failure class of what went wrong before an answer, and what shows it."""
    cause = getattr(error, "os_error", None)
    if isinstance(cause, AddressRefused):
        return "ssrf", dict(cause.refused)
    if isinstance(error, aiohttp.ClientSSLError):
        return "tls", {"tls": str(getattr(error, "certificate_error", error))}
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "dns", {"dns": _gai_name(cause)}
    if isinstance(error, TimeoutError):
        return "timeout", {}
    if isinstance(error, Unanswered | aiohttp.ClientConnectionError | OSError):
        return "connection", {}
    if isinstance(error, ValueError):
        return "dns", {"dns": str(error)}
    return "protocol", {}


def _gai_name(error: object) -> str:
    names = {socket.EAI_NONAME: NO_SUCH_NAME, socket.EAI_AGAIN: "no answer", socket.EAI_FAIL: "server failure"}
    return names.get(getattr(error, "errno", 0) or 0, str(error))
