"""What a supervisor can be asked about processes at sites: which there are, to start one, to signal one."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from testbed.emulation.waiting import wait_for
from testbed.supervisor.processes import ProcessSpec, kill_in, namespace_of, processes_in
from testbed.supervisor.registry import Progress, verb
from testbed.supervisor.state import Supervisor
from topologies.errors import StormbedError, UsageError

ARRIVAL_S: Final = 10.0
"""Entering a site and its group takes milliseconds, and a busy machine its time; less than the verb itself has."""


@verb()
def processes(supervisor: Supervisor, progress: Progress, site: str | None = None) -> list[dict[str, Any]]:
    """What runs at a site (without one: in the supervisor's own namespace), and what was started there."""
    started = {p.pid: p for p in supervisor.processes.all() if p.spec.site == site}
    result = []
    for found in processes_in(_namespace(supervisor, site)):
        process = started.pop(found["pid"], None)
        result.append(found | {"name": process.spec.name if process else None, "status": None})
    # Those that have ended, and one whose end is just about to be noticed.
    for process in started.values():
        result.append(
            {"pid": process.pid, "argv": list(process.spec.argv), "cpu_s": 0.0, "rss_bytes": 0}
            | {"name": process.spec.name, "status": process.status}
        )
    return result


@verb(changes=True)
def spawn(
    supervisor: Supervisor,
    progress: Progress,
    argv: Sequence[str],
    site: str | None = None,
    env: Mapping[str, str] | None = None,
    log: str | None = None,
    name: str | None = None,
) -> dict[str, Any]:
    """Start a process at a site, or in the supervisor's own namespace. When it ends, it stays ended.

    It is answered when the process is there and counts against the site's quota, so that whoever is told its pid
    finds it, and can end it.
    """
    if isinstance(argv, str) or not argv or not all(isinstance(word, str) for word in argv):
        raise UsageError("argv is a list of words, the program first")
    name = name or Path(argv[0]).name
    directory = supervisor.run_dir.site(site) if site else supervisor.run_dir.path
    path = Path(log) if log else directory / f"{name}.log"
    process = supervisor.processes.start(ProcessSpec(name, tuple(argv), site, path, dict(env or {})))
    where = f" at {site}" if site else ""
    wait_for(process.has_arrived, f"process {process.pid} ({name}) to begin{where}", ARRIVAL_S, step=0.005)
    return process.to_dict()


@verb(changes=True)
def kill(
    supervisor: Supervisor,
    progress: Progress,
    pid: int,
    site: str | None = None,
    signal_name: str = "SIGTERM",
) -> None:
    """Send a signal to a process at a site (or in the supervisor's own namespace); pids are the testbed's."""
    try:
        number = signal.Signals[signal_name]
    except KeyError:
        raise UsageError(f"there is no signal {signal_name!r}", hint="write for example SIGKILL") from None
    kill_in(_namespace(supervisor, site), pid, number)
    supervisor.events.write("signal", site=site, pid=pid, signal=signal_name)


def _namespace(supervisor: Supervisor, site: str | None) -> int:
    pid = supervisor.site_pid(site) if site else 1
    namespace = namespace_of(pid)
    if namespace is None:
        raise StormbedError(f"the shell that holds site {site} has ended")
    return namespace
