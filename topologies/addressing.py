"""Names, addresses and ports that every part must agree on.

All follow from a site's index (its place in the topology file) and a link's index, so that nothing is
discovered and nothing collides. Interface names keep to the kernel's 15 characters whatever the sites
are called.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final

from topologies.errors import UsageError
from topologies.model import Topology

MAX_SITES: Final = 250
"""How many sites fit a management /24. The emulator refuses more; the simulator does not care."""

WAN_PREFIX: Final = 16
WAN_SUBNET: Final = f"10.0.0.0/{WAN_PREFIX}"
HOST_PORT: Final = 1
"""The OpenFlow port of a switch where its own site hangs."""
FIRST_WAN_PORT: Final = 2

SSHD_PORT: Final = 22
AGENT_DATA_PORT: Final = 7000
AGENT_CONTROL_PORT: Final = 7001
COORDINATOR_PORT: Final = 7002
AGENT_METRICS_PORT: Final = 9101
COORDINATOR_METRICS_PORT: Final = 9102
DELAY_LINE_METRICS_PORT: Final = 9103
SUPERVISOR_METRICS_PORT: Final = 9104
PROMETHEUS_PORT: Final = 9090
OPENFLOW_PORT: Final = 6653
"""On 127.0.0.1 of the testbed's own namespace."""
CONTROLLER_HTTP_PORT: Final = 8080


def wan_ip(k: int) -> str:
    """The WAN address of site k, without prefix length (it is /16)."""
    return f"10.0.{_index(k) // 250}.{k % 250 + 1}"


def wan_mac(k: int) -> str:
    """The WAN MAC address of site k; locally administered."""
    number = _index(k) + 1
    return f"02:53:42:00:{number >> 8:02x}:{number & 0xFF:02x}"


def dpid(k: int) -> int:
    """The datapath id of the switch of site k."""
    return _index(k) + 1


def wan_port(topology: Topology, u: int, v: int) -> int:
    """The OpenFlow port of switch u that leads to its neighbour v: 2, 3, ... in the file's order of links."""
    try:
        return topology.neighbours_in_file_order(u).index(v) + FIRST_WAN_PORT
    except ValueError:
        names = topology.site_names
        raise UsageError(f"no link joins {names[u]} and {names[v]}") from None


def switch_name(k: int) -> str:
    return f"s{_index(k) + 1}"


def host_name(k: int) -> str:
    """The host's name for Mininet; users see the site's name."""
    return f"h{_index(k) + 1}"


def host_intf(k: int) -> str:
    """The WAN interface inside site k."""
    return f"h{_index(k) + 1}-wan"


def switch_host_intf(k: int) -> str:
    """The other end of it: the port of the site's switch."""
    return f"s{_index(k) + 1}-h"


def wan_intf(i: int, side: int) -> str:
    """The switch's end of link i. Side 0 is the link's first endpoint, side 1 its second."""
    return f"w{_index(i)}{_side(side)}"


def delay_intf(i: int, side: int) -> str:
    """The delay line's end of link i on that side: the peer of `wan_intf(i, side)`.

    What leaves by side 1 travels forward, so the forward direction is shaped there.
    """
    return f"d{_index(i)}{_side(side)}"


@dataclass(frozen=True, slots=True)
class Management:
    """The addresses of one testbed's management network, which is never shaped.

    Args:
        subnet: a /24, such as "10.199.3.0/24".
    """

    subnet: str

    def __post_init__(self) -> None:
        try:
            network = ipaddress.IPv4Network(self.subnet)
        except ValueError as error:
            raise UsageError(
                f"{self.subnet!r} is not a management subnet: {error}", hint="10.199.0.0/24"
            ) from None
        if network.prefixlen != 24:
            raise UsageError(f"the management subnet {self.subnet} is not a /24")

    @property
    def prefixlen(self) -> int:
        return 24

    @property
    def gateway(self) -> str:
        """The caller's end."""
        return self._host(254)

    @property
    def supervisor(self) -> str:
        """The bridge inside the testbed: coordinator, controller, Prometheus."""
        return self._host(253)

    def site(self, k: int) -> str:
        if not 0 <= k < MAX_SITES:
            raise UsageError(f"site {k + 1} has no management address", hint=f"at most {MAX_SITES} sites")
        return self._host(k + 1)

    def _host(self, last: int) -> str:
        return str(ipaddress.IPv4Network(self.subnet).network_address + last)


def _index(k: int) -> int:
    if not 0 <= k < 250 * 250:
        raise UsageError(f"{k} is not an index")
    return k


def _side(side: int) -> str:
    if side not in (0, 1):
        raise UsageError(f"a link has sides 0 and 1, not {side}")
    return "ab"[side]
