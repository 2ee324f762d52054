"""Waiting for a condition: always with a deadline, always saying what was waited for."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from topologies.errors import DeadlineError

T = TypeVar("T")


def wait_for(
    condition: Callable[[], T | bool | None], what: str, seconds: float, *, step: float = 0.02, hint: str = ""
) -> T:
    """What `condition` returns as soon as that is true.

    Raises:
        DeadlineError: it never was; the message reads "waited 5 s for WHAT in vain".
    """
    deadline = time.monotonic() + seconds
    while True:
        result = condition()
        if result:
            return result  # type: ignore[return-value]
        if time.monotonic() >= deadline:
            raise DeadlineError(what, seconds, hint=hint)
        time.sleep(step)


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since the boot; None when there is none, or only a zombie.

    Together with the pid it names a process for good: pids are used again, this pair is not.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def is_running(pid: int | None, ticks: int | None) -> bool:
    """Whether the process that had this pid and start time still runs."""
    return pid is not None and ticks is not None and start_ticks(pid) == ticks


def is_ending(pid: int) -> bool:
    """Whether a process has been killed or exits already, although it is still there.

    Under load a process can take a while from SIGKILL to its end.
    """
    exiting, sigkill = 0x4, 1 << (signal.SIGKILL - 1)
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return True
    flags = int(stat.rpartition(")")[2].split()[6])
    pending = [int(line.split()[1], 16) for line in status if line.startswith(("SigPnd:", "ShdPnd:"))]
    return bool(flags & exiting) or any(mask & sigkill for mask in pending)


def reap(pid: int) -> None:
    """Collect a child of ours that has ended; nothing happens when it has not, or is not ours."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass
