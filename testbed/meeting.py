"""Where the processes of `torch.distributed` meet: an address on the WAN, a port, and each site's interface. Pure."""

from __future__ import annotations

import random
from typing import Final

from topologies import addressing

# Below the ephemeral range, so that no connection of the testbed's own holds the port.
PORTS: Final = range(29500, 30500)


def choose_port() -> int:
    """A port for one meeting; its site has a network namespace of its own, so that it is nearly always free."""
    return random.choice(PORTS)


def meeting(site: int, port: int) -> dict[str, str]:
    """What a worker at a site finds in its environment: it meets at the first site and speaks over the WAN.

    Args:
        site: the site's index.
        port: of the meeting point.
    """
    interface = addressing.host_intf(site)
    return {
        "MASTER_ADDR": addressing.wan_ip(0),
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": interface,
        "TP_SOCKET_IFNAME": interface,
    }
