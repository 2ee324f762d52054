"""Taking testbeds away, from outside: what `down`, `clean` and a failed `up` do.

When the supervisor ends, by whatever signal, the kernel ends every process and namespace of the testbed. All
that remains to be removed is a directory, and, until the kernel has collected it, the veth that led in.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from testbed.client import SupervisorClient
from testbed.emulation import cgroups, management
from testbed.emulation.listing import list_testbeds, read_info_or_none
from testbed.emulation.page import end_page
from testbed.emulation.rundir import RunDir, TestbedInfo
from testbed.emulation.waiting import is_running, reap, start_ticks, wait_for
from topologies.errors import CleanupError, DeadlineError, StormbedError, UsageError

END_S: Final = 10.0
KILLED_S: Final = 60.0
"""A killed testbed of 64 sites lets go of its packet sockets one after the other: nine seconds on an idle
machine."""


def down(name: str, *, on_progress: Callable[[str], None] | None = None) -> None:
    """Take a testbed away, with everything that belongs to it. Once begun, Ctrl-C does not stop it half-way.

    Raises:
        UsageError: there is none of this name.
        CleanupError: something of it could not be removed; the message names it.
    """
    run_dir = RunDir.of(name)
    progress = on_progress or (lambda text: None)
    if not run_dir.path.exists():
        raise UsageError(f"there is no testbed {name!r}", hint="`testbed status` lists those that are up")
    info = read_info_or_none(run_dir)
    if info is not None and info.init_pid is None and is_running(info.pid, info.started_ticks):
        raise UsageError(f"testbed {name} is just being brought up", hint=f"interrupt process {info.pid}")
    with _uninterrupted():
        if info is not None and is_running(info.pid, info.started_ticks):
            progress("asking its processes to end")
            try:
                SupervisorClient(name).call("shutdown", timeout=END_S)
            except StormbedError:
                pass  # it may have ended on the way, or not answer; it is ended below either way
        remove(run_dir, info)
        progress("down")


def clean(name: str | None = None) -> list[str]:
    """Remove what dead testbeds left; returns their names. Those that are alive are not touched.

    Args:
        name: only this one; UsageError when it is alive.
    """
    cleaned = []
    with alone_on_this_machine():  # one whose `up` has just taken its name looks like what a dead one has left
        for listed in list_testbeds():
            if name is not None and listed.name != name:
                continue
            if listed.alive:
                if name is not None:
                    raise UsageError(f"testbed {name} is up", hint=f"`testbed down {name}` takes it away")
                continue
            remove(RunDir.of(listed.name), listed.info)
            cleaned.append(listed.name)
    return cleaned


@contextmanager
def alone_on_this_machine() -> Iterator[None]:
    """One caller at a time, also where callers use different run roots: subnets belong to the machine.

    The lock is on a directory that every Linux has, so that no file is left behind.
    """
    directory = os.open("/run", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def undo(run_dir: RunDir, info: TestbedInfo, process: subprocess.Popen[bytes] | None) -> None:
    """Remove what a failed or interrupted `up` has made. A second interrupt does not stop this."""
    with _uninterrupted():
        if process is not None:
            _end(process.pid, start_ticks(process.pid), patience_s=0)
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        remove(run_dir, info.model_copy(update={"pid": None}))


def remove(run_dir: RunDir, info: TestbedInfo | None) -> None:
    """End a testbed, if it still runs, and its page; remove its files, its veth and its control groups."""
    end_page(run_dir.path)
    if info is not None and info.init_pid is not None and is_running(info.pid, info.started_ticks):
        assert info.pid is not None
        _end(info.pid, info.started_ticks)
    if info is not None:
        _remove_interface(info.interface)
    cgroups.remove(run_dir)
    left = _remove_tree(run_dir.path)
    if left:
        raise CleanupError(f"{left} could not be removed")


def _remove_interface(name: str) -> None:
    """Remove the veth that led in. While the kernel is collecting it with a namespace, it cannot be removed
    and is still there."""

    def removed() -> bool:
        if management.link_exists(name):
            management.remove_link(name)
        return not management.link_exists(name)

    try:
        wait_for(removed, f"the interface {name} to go away", KILLED_S)
    except DeadlineError:
        raise CleanupError(f"the interface {name} could not be removed") from None


def _end(pid: int, ticks: int | None, patience_s: float = 1.0) -> None:
    """End the process that keeps a testbed's namespaces, and wait until everything inside has ended.

    The first process inside ends last: the kernel lets it go only when all others of its namespace are gone.
    """
    keepers = {child: start_ticks(child) for child in children(pid)}
    if is_running(pid, ticks):
        keepers[pid] = ticks

    def ended() -> bool:
        reap(pid)
        return not any(is_running(keeper, since) for keeper, since in keepers.items())

    try:
        wait_for(ended, "the supervisor to end by itself", patience_s)
        return
    except DeadlineError:
        pass
    # The first process inside before its parent, so that the parent collects it and then ends by itself.
    for keeper, since in keepers.items():
        if is_running(keeper, since):
            try:
                os.kill(keeper, signal.SIGKILL)
            except ProcessLookupError:
                pass
    try:
        wait_for(ended, f"process {pid} to end", KILLED_S)
    except DeadlineError as error:
        raise CleanupError(f"the supervisor (process {pid}) does not end: {error.message}") from None


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _remove_tree(path: Path) -> Path | None:
    """Remove a directory; returns what resisted. Processes that are just ending may still write into it."""

    def removed() -> bool:
        shutil.rmtree(path, ignore_errors=True)
        return not path.exists()

    try:
        wait_for(removed, f"{path} to go away", 3.0)
    except DeadlineError:
        return path
    return None


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until the block is done. Only the main thread can, and need, hold them off."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
