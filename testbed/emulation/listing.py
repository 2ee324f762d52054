"""Which testbeds there are on this machine, alive or only left over."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.emulation.rundir import RunDir, TestbedInfo, read_info, run_root
from testbed.emulation.waiting import is_running
from topologies.errors import InvalidFileError


@dataclass(frozen=True, slots=True)
class Listed:
    """A testbed as found on this machine. `alive`: its supervisor runs; otherwise it is only leftovers."""

    name: str
    alive: bool
    info: TestbedInfo | None


def list_testbeds() -> list[Listed]:
    """Every testbed on this machine, alive or not, by name."""
    root = run_root()
    found = []
    for entry in sorted(root.iterdir()) if root.is_dir() else []:
        if entry.is_dir():
            info = read_info_or_none(RunDir(entry))
            alive = info is not None and is_running(info.pid, info.started_ticks)
            found.append(Listed(entry.name, alive, info))
    return found


def read_info_or_none(run_dir: RunDir) -> TestbedInfo | None:
    """The state of a testbed; None also when the file cannot be understood, as after a crash."""
    try:
        return read_info(run_dir)
    except InvalidFileError:
        return None
