"""The management network: SSH, control and metrics, never shaped.

Every testbed has a /24 of its own, 10.199.N.0/24, or 10.198.N.0/24 where those are taken. One veth joins the
machine to the testbed: its outer end is the only thing of ours in the machine's own network namespace. Inside, a
bridge joins the supervisor and every site.
"""

from __future__ import annotations

import hashlib
import ipaddress
import itertools
import json
from collections.abc import Iterable
from typing import Final

from testbed.emulation.rundir import RunDir
from testbed.runner import run
from topologies.addressing import Management
from topologies.errors import CannotHonourError

SUPERNETS: Final = ("10.199", "10.198")
BRIDGE: Final = "mgmt"
UPLINK: Final = "mgmt-up"
"""The inner end of the veth that leads to the machine."""
SITE_INTERFACE: Final = "mgmt"
"""What a site calls its own end."""


def site_port(k: int) -> str:
    """The bridge's port of site k."""
    return f"m{k + 1}"


def interface_name(run_dir: RunDir) -> str:
    """The outer end's name: the same for the same testbed directory, at most 15 characters."""
    return f"sb{hashlib.sha256(str(run_dir.path).encode()).hexdigest()[:8]}-m"


def choose_subnet(taken: Iterable[str]) -> Management:
    """The first free 10.199.N.0/24, or 10.198.N.0/24 where none of those is free.

    Args:
        taken: addresses and networks in use, such as "10.199.0.254/24" or "10.0.0.0/8".

    Raises:
        CannotHonourError: all of them are taken.
    """
    # An address with a prefix length stands for its whole network. 10.0.0.0/8 as a route of the machine would
    # cover all of ours, and yet a longer prefix wins over it: only what lies within ours is in the way.
    networks = [ipaddress.IPv4Interface(text).network for text in taken if text != "default"]
    for supernet, n in itertools.product(SUPERNETS, range(256)):
        candidate = ipaddress.IPv4Network(f"{supernet}.{n}.0/24")
        if not any(network.prefixlen >= 16 and network.overlaps(candidate) for network in networks):
            return Management(str(candidate))
    raise CannotHonourError(
        f"every /24 of {' and '.join(f'{supernet}.0.0/16' for supernet in SUPERNETS)} is in use on this machine",
        hint="`ip route` shows by what; `testbed list` shows the testbeds, and `testbed clean` removes dead ones",
    )


def networks_in_use() -> list[str]:
    """The IPv4 addresses and routes of this network namespace."""
    taken = []
    for device in json.loads(run(["ip", "-j", "-4", "addr"], timeout=10).stdout):
        taken += [f"{a['local']}/{a['prefixlen']}" for a in device.get("addr_info", []) if "local" in a]
    taken += [route["dst"] for route in json.loads(run(["ip", "-j", "-4", "route"], timeout=10).stdout)]
    return taken


def reserve_lines(interface: str, management: Management, *, ipv6: bool) -> list[str]:
    """Lines for `ip -batch` by which the caller makes the veth, both ends still outside.

    From then on the address says to everybody on this machine that the subnet is taken.

    Args:
        interface: the outer end's name.
        management: the testbed's addresses.
        ipv6: whether the machine has IPv6; a link-local address would make it chatter into the testbed.
    """
    lines = [
        f"link add name {interface} type veth peer name {_inner(interface)}",
        f"addr add {management.gateway}/{management.prefixlen} dev {interface}",
    ]
    if ipv6:
        lines.append(f"link set dev {interface} addrgenmode none")
    return lines


def enter_lines(interface: str, pid: int) -> list[str]:
    """Lines for `ip -batch` by which the caller gives the inner end to a testbed.

    Args:
        interface: the outer end's name.
        pid: a process in the testbed's network namespace.
    """
    return [
        f"link set dev {_inner(interface)} netns {pid} name {UPLINK}",
        f"link set dev {interface} up",
    ]


def _inner(interface: str) -> str:
    """What the inner end is called while it is still outside."""
    return interface.removesuffix("-m") + "-i"


def bridge_lines(management: Management) -> list[str]:
    """Lines for `ip -batch` in the testbed's namespace, once the uplink is there."""
    return [
        f"link add name {BRIDGE} type bridge stp_state 0 mcast_snooping 0",
        f"addr add {management.supervisor}/{management.prefixlen} dev {BRIDGE}",
        f"link set dev {BRIDGE} up",
        f"link set dev {UPLINK} master {BRIDGE} up",
    ]


def site_lines(k: int, pid: int) -> list[str]:
    """Lines for `ip -batch` in the testbed's namespace that join site k, whose shell has this pid."""
    return [
        f"link add name {site_port(k)} type veth peer name {SITE_INTERFACE} netns {pid}",
        f"link set dev {site_port(k)} master {BRIDGE} up",
    ]


def link_exists(interface: str) -> bool:
    """Whether this network namespace has such an interface."""
    return run(["ip", "link", "show", "dev", interface], timeout=10, check=False).ok


def remove_link(interface: str) -> None:
    """Remove the outer end, if it has not gone with the testbed's namespace."""
    run(["ip", "link", "del", "dev", interface], timeout=10, check=False)
