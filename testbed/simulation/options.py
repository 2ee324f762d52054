"""What the fluid model adds to a topology."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class WorldOptions:
    """What the fluid model adds to the topology.

    efficiency         share of a link's rate that chunks get: 1 is ideal, TCP over Ethernet about 0.95
    per_message_bytes  bytes that every chunk costs besides its own (a frame's header)
    control_delay_ns   one way between a site and the coordinator, on the management network
    reroute_ns         from the controller's decision about a cut link until the switches have the new rules
    relay              how a hop over several links travels: "flow" as one flow that shares all of them
                       max-min fairly, as TCP through switches does; "queue" as whole chunks that wait in one
                       first-in first-out queue per link, the model of docs/simulation.md's earlier figures
    """

    efficiency: float = 1.0
    per_message_bytes: int = 0
    control_delay_ns: int = 0
    reroute_ns: int = 20_000_000
    relay: Literal["flow", "queue"] = "flow"


IDEAL = WorldOptions()
# TCP over Ethernet: 1448 of 1538 bytes on the wire are payload. A frame of ours has some 200 bytes of header.
REALISTIC = WorldOptions(efficiency=0.94, per_message_bytes=200, control_delay_ns=300_000)
