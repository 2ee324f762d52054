"""What TCP does about a path that carries nothing: it tries again, ever more rarely, and gives up in the end.

The timers are Linux's, as the agents' connections set them (`agents.lane_socket`); only their firing matters here,
for a fluid connection knows no packets.
"""

from __future__ import annotations

from dataclasses import dataclass

from agents.lane_socket import LONGEST_RETRANSMISSION_MS
from agents.lanes import CONNECT_SECONDS
from testbed.simulation.clock import SECOND

FIRST_NS = SECOND // 5
"""TCP_RTO_MIN: the least that the first retransmission waits beyond a round trip."""
FIRST_CONNECT_NS = SECOND
"""TCP_TIMEOUT_INIT: the same of a connection that is not open yet."""
LONGEST_NS = LONGEST_RETRANSMISSION_MS * SECOND // 1000
RETRIES = 15
"""tcp_retries2: after so many retransmissions the connection is lost."""


@dataclass(frozen=True)
class Retransmission:
    """The timers of one connection since it lost something at `since_ns`, with a round trip of `rtt_ns`."""

    since_ns: int
    rtt_ns: int
    connecting: bool = False

    def next_ns(self, now_ns: int) -> int:
        """The first retransmission at `now_ns` or later."""
        wait = (FIRST_CONNECT_NS if self.connecting else FIRST_NS) + self.rtt_ns
        time = self.since_ns
        while True:
            time += wait
            if time >= now_ns:
                return time
            wait = min(2 * wait, max(LONGEST_NS, self.rtt_ns))

    @property
    def gives_up_ns(self) -> int:
        """When the connection is lost, as Linux reckons it (tcp_model_timeout), or was never made."""
        if self.connecting:
            return self.since_ns + round(CONNECT_SECONDS * SECOND)
        doublings = (LONGEST_NS // FIRST_NS).bit_length() - 1
        whole = ((2 << doublings) - 1) * FIRST_NS + (RETRIES - doublings) * LONGEST_NS
        return self.since_ns + whole
