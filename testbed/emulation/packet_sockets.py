"""The packet sockets of other processes, borrowed: to enlarge their buffers, and to close many of them at once.

The kernel lets go of a packet socket only after every processor has been quiet once (`synchronize_net`), which
takes 8 to 26 ms, and a process that ends closes its sockets one after the other. With 64 sites there are
more than 600: nine seconds. Whoever holds another descriptor of each can close them side by side instead.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from topologies.errors import CannotHonourError

_SYS_PIDFD_GETFD: Final = 438
"""The same number on every architecture."""
CLOSERS: Final = 64


def borrow_packet_sockets(pid: int) -> list[socket.socket]:
    """Every packet socket of a process of this namespace, as sockets of ours too.

    Raises:
        CannotHonourError: the kernel or the environment does not permit it.
        OSError: there is no such process.
    """
    process = os.pidfd_open(pid)
    found = []
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                if not str(entry.readlink()).startswith("socket:"):
                    continue
            except FileNotFoundError:
                continue  # closed meanwhile
            borrowed = socket.socket(fileno=_borrow(process, int(entry.name)))
            if borrowed.family == socket.AF_PACKET:
                found.append(borrowed)
            else:
                borrowed.close()
    finally:
        os.close(process)
    return found


def end_and_close(pids: Iterable[int]) -> int:
    """Kill processes that hold many packet sockets, and close the sockets side by side; returns how many."""
    sockets: list[socket.socket] = []
    for pid in pids:
        try:
            sockets += borrow_packet_sockets(pid)
            os.kill(pid, signal.SIGKILL)
        except (OSError, CannotHonourError):
            continue  # it has ended already, or ends the slow way
    if sockets:
        with ThreadPoolExecutor(min(CLOSERS, len(sockets))) as closers:
            list(closers.map(socket.socket.close, sockets))
    return len(sockets)


def _borrow(process: int, fd: int) -> int:
    """A descriptor of another process, as one of ours."""
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(_SYS_PIDFD_GETFD, process, fd, 0)
    if result < 0:
        code = ctypes.get_errno()
        raise CannotHonourError(
            f"the sockets of ovs-vswitchd cannot be reached: {os.strerror(code)}",
            hint="needs root with CAP_SYS_PTRACE and Linux 5.6 or later",
        )
    return int(result)
