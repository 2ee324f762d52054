"""The processes of a testbed: what is to run where, what runs, and what has ended."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed import sites
from testbed.emulation.cgroups import joining
from testbed.emulation.environment import base_environment
from testbed.emulation.rundir import RunDir
from testbed.emulation.waiting import start_ticks, wait_for
from testbed.events import EventLog
from topologies.errors import CannotHonourError, UsageError


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """What is to run. None is ever started again by itself: a death is a result, not a nuisance.

    Args:
        name: unique within its place, shown to users.
        argv: the program and its arguments.
        site: the name of the site to run at; None is the supervisor's own namespace.
        log: gets its standard output and error.
        env: on top of the place's own environment.
        limited: whether it counts against the site's CPU quota.
    """

    name: str
    argv: tuple[str, ...]
    site: str | None
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    limited: bool = True


@dataclass(slots=True)
class Process:
    """A process that was started. `status` is None while it runs; negative means ended by that signal.

    `launchers` are the command lines that it has on its way into its site and its control group.
    """

    spec: ProcessSpec
    popen: subprocess.Popen[bytes]
    started_s: float
    launchers: tuple[Sequence[str], ...] = ()
    status: int | None = None

    @property
    def pid(self) -> int:
        return self.popen.pid

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.spec.name,
            "site": self.spec.site,
            "pid": self.pid,
            "argv": list(self.spec.argv),
            "log": str(self.spec.log),
            "started_s": self.started_s,
            "status": self.status,
        }

    def has_arrived(self) -> bool:
        """Whether it is at its site, in its group, and the program that was asked for; or has ended."""
        if not self.launchers:
            return True  # Popen itself waits until the program has begun
        try:
            now = Path(f"/proc/{self.pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return True
        if not now:  # just becoming another program, or ended
            return start_ticks(self.pid) is None
        return now not in {b"".join(os.fsencode(word) + b"\0" for word in argv) for argv in self.launchers}


def enter_argv(pid: int, argv: Sequence[str]) -> list[str]:
    """A command that runs another inside the namespaces (network, mounts, host name) of a site's shell."""
    return ["nsenter", "--target", str(pid), "--net", "--mount", "--uts", "--", *argv]


class ProcessTable:
    """Starts processes and notices their end.

    Args:
        run_dir: the testbed's files.
        events: gets "process_started" and "process_ended".
        loop: the supervisor's; pidfds wake it.
        site_pid: the pid of a site's shell, by the site's name.
        group_of: the control group of a site, None where it has no quota.
    """

    def __init__(
        self,
        run_dir: RunDir,
        events: EventLog,
        loop: asyncio.AbstractEventLoop,
        site_pid: Callable[[str], int],
        group_of: Callable[[str], Path | None],
    ) -> None:
        self._run_dir = run_dir
        self._events = events
        self._loop = loop
        self._site_pid = site_pid
        self._group_of = group_of
        self._processes: list[Process] = []
        self._lock = threading.Lock()

    def start(self, spec: ProcessSpec) -> Process:
        """Start a process. From any thread. It may still be on its way to its site; see `Process.has_arrived`."""
        environment = base_environment()
        argv = list(spec.argv)
        launchers: list[list[str]] = []
        if spec.site is not None:
            environment |= sites.site_environment(self._run_dir.path, spec.site)
            group = self._group_of(spec.site) if spec.limited else None
            if group is not None:
                argv = joining(group, argv)
                launchers.append(argv)
            argv = enter_argv(self._site_pid(spec.site), argv)
            launchers.append(argv)
        environment |= spec.env
        spec.log.parent.mkdir(parents=True, exist_ok=True)
        with spec.log.open("ab") as log:
            try:
                popen = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    start_new_session=True,
                )
            except FileNotFoundError:
                raise CannotHonourError(f"the program {argv[0]} is not installed") from None
        process = Process(spec, popen, time.time(), tuple(launchers))
        with self._lock:
            self._processes.append(process)
        self._events.write("process_started", name=spec.name, site=spec.site, pid=popen.pid, argv=spec.argv)
        self._loop.call_soon_threadsafe(self._watch, process)
        return process

    def _watch(self, process: Process) -> None:
        pidfd = os.pidfd_open(process.pid)

        def ended() -> None:
            self._loop.remove_reader(pidfd)
            os.close(pidfd)
            status, spec = process.popen.wait(), process.spec
            try:
                # First the log: whoever is told that it has ended finds that there.
                self._events.write(
                    "process_ended", name=spec.name, site=spec.site, pid=process.pid, status=status
                )
            finally:
                process.status = status

        self._loop.add_reader(pidfd, ended)

    def all(self) -> list[Process]:
        with self._lock:
            return list(self._processes)

    def find(self, name: str, site: str | None = None) -> Process | None:
        """The last started process of a name and place."""
        for process in reversed(self.all()):
            if process.spec.name == name and process.spec.site == site:
                return process
        return None

    def ended(self) -> list[Process]:
        """Those that have ended, on purpose or not."""
        return [process for process in self.all() if process.status is not None]

    def terminate_all(self, seconds: float, but: Collection[str] = ()) -> None:
        """Ask all to end, but those of these names, and give them so long.

        Raises:
            DeadlineError: some have not ended.
        """
        running = [p for p in self.all() if p.status is None and p.spec.name not in but]
        for process in running:
            process.popen.send_signal(signal.SIGTERM)
        wait_for(lambda: all(process.status is not None for process in running), "processes to end", seconds)


def namespace_of(pid: int) -> int | None:
    """The number of the network namespace of a process; None when it is gone."""
    try:
        return Path(f"/proc/{pid}/ns/net").stat().st_ino
    except (FileNotFoundError, ProcessLookupError):
        return None


def processes_in(namespace: int) -> list[dict[str, Any]]:
    """Every process in a network namespace, as the kernel knows it."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and namespace_of(int(entry.name)) == namespace:
            try:
                argv = (entry / "cmdline").read_bytes().rstrip(b"\0").decode(errors="replace").split("\0")
                fields = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
                rss = int((entry / "statm").read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")
            except (FileNotFoundError, ProcessLookupError):
                continue
            cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            found.append({"pid": int(entry.name), "argv": argv, "cpu_s": cpu, "rss_bytes": rss})
    return sorted(found, key=lambda p: p["pid"])


def kill_in(namespace: int, pid: int, number: int) -> None:
    """Send a signal to a process, if it is in that network namespace.

    Raises:
        UsageError: it is not there.
    """
    try:
        pidfd = os.pidfd_open(pid)  # from here on the pid cannot be another process's
    except ProcessLookupError:
        raise UsageError(f"there is no process {pid} at this site") from None
    try:
        if namespace_of(pid) != namespace:
            raise UsageError(f"process {pid} is not at this site")
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(pidfd)
