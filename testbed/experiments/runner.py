"""Which process writes a run directory, so that a reader can tell a run that goes on from one left behind."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from pydantic import BaseModel, ConfigDict

_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Runner(BaseModel):
    """A process for good: pids are used again, but not with the same start on the same boot of a machine."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    host: str
    boot: str
    pid: int
    started_ticks: int

    def is_gone(self) -> bool:
        """Whether it has ended. False on another machine, from where it cannot be known."""
        if self.host != platform.node():
            return False
        return self.boot != _boot() or _start_ticks(self.pid) != self.started_ticks


def this_runner() -> Runner | None:
    """This process; None where the kernel does not tell when it started."""
    ticks, boot = _start_ticks(os.getpid()), _boot()
    if ticks is None or boot is None:
        return None
    return Runner(host=platform.node(), boot=boot, pid=os.getpid(), started_ticks=ticks)


def _boot() -> str | None:
    try:
        return _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        return None


def _start_ticks(pid: int) -> int | None:
    """When a process started; None when there is none, or only a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
