"""Entering a site from outside the testbed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from testbed.emulation.cgroups import joining
from testbed.emulation.rundir import RunDir, TestbedInfo, read_info
from testbed.emulation.waiting import is_running
from topologies.errors import UsageError
from topologies.model import nearest


def running_info(name: str) -> TestbedInfo:
    """The state of a testbed that is up.

    Raises:
        UsageError: there is none of that name, or it has died.
    """
    info = read_info(RunDir.of(name))
    if info is None or not is_running(info.pid, info.started_ticks):
        raise UsageError(f"no testbed {name!r} is up", hint="`testbed status` lists those that are")
    return info


def enter_argv(name: str, site: str | None, argv: Sequence[str]) -> list[str]:
    """A command that runs another inside a site: its network, mounts, host name and the testbed's processes.

    Args:
        name: the testbed.
        site: the site; None enters the supervisor's own namespaces.
        argv: the command to run there.
    """
    info = running_info(name)
    if site is None:
        pid = info.supervisor_pid
    elif site in info.sites:
        pid = info.sites[site].pid
    else:
        raise UsageError(f"testbed {name} has no site {site!r}", hint=nearest(site, list(info.sites)))
    if pid is None:
        raise UsageError(f"testbed {name} is still starting", hint="wait for `up` to return")
    group = None if site is None else info.group_of(site)
    if group is not None:
        argv = joining(group, argv)
    return ["nsenter", "--target", str(pid), "--net", "--mount", "--pid", "--uts", "--", *argv]


def host_pids(init_pid: int) -> dict[int, int]:
    """Every process of a testbed: its pid inside to its pid as this process sees it.

    Args:
        init_pid: the testbed's first process, as this process sees it.
    """
    namespace = Path(f"/proc/{init_pid}/ns/pid").stat().st_ino
    result = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if (entry / "ns" / "pid").stat().st_ino != namespace:
                continue
            status = (entry / "status").read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        for line in status.splitlines():
            if line.startswith("NSpid:"):
                result[int(line.split()[-1])] = int(entry.name)
    return result
