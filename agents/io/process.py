"""Facts about another process, from /proc: is it still the one that we started, how big is it, how old is it."""

from __future__ import annotations

import os
import time
from pathlib import Path

# Positions after the command name in /proc/PID/stat: proc(5) fields 3, 20 and 22.
_STATE, _THREADS, _START = 0, 17, 19


def identity(pid: int) -> str:
    """What tells this process from any other with the same number: the boot and its start in ticks; "" if it is gone.

    A zombie counts as gone, since it holds no files, ports or locks any more, but not before its last thread ended.
    """
    fields = _stat(pid)
    if not fields or (fields[_STATE] in {"Z", "X"} and int(fields[_THREADS]) <= 1):
        return ""
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}:{fields[_START]}"


def resident(pid: int) -> int:
    """Bytes of memory in use (VmRSS); 0 if the process is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def uptime(pid: int) -> float:
    """Seconds since the process started; 0 if it is gone."""
    fields = _stat(pid)
    if not fields:
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[_START]) / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return text.rpartition(")")[2].split()  # the command name may hold blanks and parentheses
