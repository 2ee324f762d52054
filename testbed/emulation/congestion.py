"""Which congestion control the connections across the WAN use, and how the kernel is brought to it.

Linux lets every network namespace but the machine's first choose only what the first one allows, in
`net.ipv4.tcp_allowed_congestion_control`. Where that list may not be extended, as in most containers, the
routes across the WAN carry the choice: the kernel does not restrict those.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

WANTED: Final = "cubic"
"""Whatever the machine prefers: BBR without fq paces badly and makes runs incomparable."""
SPARE: Final = "reno"
"""Every kernel has it."""
DEFAULT: Final = Path("/proc/sys/net/ipv4/tcp_congestion_control")
ALLOWED: Final = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")


@dataclass(frozen=True, slots=True)
class Congestion:
    """The sites' congestion control. `by_route`: it is set on the routes across the WAN, not as the default."""

    name: str
    by_route: bool = False

    def gap(self) -> str | None:
        """What a user has to know about it; None when it is the wanted one, set in the usual way."""
        if self.name != WANTED:
            return f"this kernel has no {WANTED}: connections across the WAN use {self.name}"
        if self.by_route:
            return (
                f"this environment does not let sites default to {self.name}: the routes across the WAN set it, "
                "also for a program that chose another before it connected"
            )
        return None


def choose(wanted: str) -> str:
    """`wanted` where this kernel has it, and reno where it does not. Loads the module of `wanted` if needed."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tried:
        try:
            tried.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, wanted.encode())
        except PermissionError:
            pass  # the kernel has it, and this process may not use it
        except OSError:
            return SPARE
    return wanted


def allowed() -> list[str]:
    """What network namespaces may choose."""
    return ALLOWED.read_text().split()


def may_allow() -> bool:
    """Whether `allow` may extend the list: only root in the machine's first network namespace."""
    return os.access(ALLOWED, os.W_OK)


def allow(name: str) -> bool:
    """Let all network namespaces of this machine choose `name`; True when the list had to be extended for it.

    The machine's own default stays. Where the list may not be written nothing happens.
    """
    names = allowed()
    if name in names:
        return False
    try:
        ALLOWED.write_text(" ".join([*names, name]))
    except OSError:
        return False
    return True


def apply(name: str) -> Congestion:
    """Make `name` the default of this process's network namespace if that is allowed.

    Where it is not, it is not in any other new namespace either, and the routes have to carry it.
    """
    try:
        DEFAULT.write_text(name)
    except OSError:
        return Congestion(name, by_route=True)
    return Congestion(name)
