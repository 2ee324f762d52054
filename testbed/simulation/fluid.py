"""Messages over a network of fluid links: what the agents' connections do, without packets.

Every connection follows one path in one class and sends one message at a time, the rest waits in its own
queue; connections that are sending share the links max-min fairly, higher classes first. A message has
arrived one path delay after its last bit left. No losses, no slow start, no headers but a constant share
(`efficiency`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from testbed.simulation.clock import VirtualClock
from testbed.simulation.maxmin import FairShares, Share

Delivered = Callable[[], object]
Order = tuple[float, ...]
SECOND = 1_000_000_000


@dataclass(frozen=True)
class FluidLink:
    """One direction of a link."""

    rate_bps: float
    delay_ns: int = 0


@dataclass(order=True)
class _Message:
    order: Order
    number: int
    bits: float = field(compare=False)
    delivered: Delivered = field(compare=False)


@dataclass(eq=False)
class Connection:
    """A queue of messages from one site to another over fixed links. Made by `FluidNetwork.connect`."""

    route: tuple[int, ...]
    cls: int
    share: Share | None = None
    sending: _Message | None = None
    left_bits: float = 0.0
    rate_bps: float = 0.0
    since_ns: int = 0
    version: int = 0
    epoch: int = 0
    arrival_ns: int = 0
    queue: list[_Message] = field(default_factory=list)

    @property
    def waiting(self) -> int:
        """Messages in the queue, the one being sent not counted."""
        return len(self.queue)


class FluidNetwork:
    """Directed links, numbered as given. `efficiency` is the share of a link's rate that payload can use."""

    def __init__(
        self,
        clock: VirtualClock,
        links: Sequence[FluidLink],
        *,
        efficiency: float = 1.0,
        per_message_bytes: int = 0,
    ) -> None:
        if not 0 < efficiency <= 1:
            raise ValueError(f"efficiency must be in (0, 1], not {efficiency}")
        self.clock = clock
        self.efficiency = efficiency
        self.per_message_bits = 8.0 * per_message_bytes
        self.carried_bits = [0.0] * len(links)
        self.messages = 0
        self._delay_ns = [link.delay_ns for link in links]
        self._shares = FairShares([link.rate_bps * efficiency for link in links])
        self._owner: dict[int, Connection] = {}
        self._idle: list[Connection] = []
        self._begun: list[Connection] = []
        self._stale = False
        clock.before_advance = self._flush

    def connect(self, route: Sequence[int], cls: int = 0) -> Connection:
        if not route:
            raise ValueError("a connection needs at least one link")
        return Connection(tuple(route), cls)

    def send(self, connection: Connection, nbytes: int, delivered: Delivered, order: Order = ()) -> None:
        """Queue a message; least `order` first, equal ones in order of sending. Calls back on arrival."""
        self.messages += 1
        message = _Message(order, self.messages, 8.0 * nbytes + self.per_message_bits, delivered)
        if connection.sending is None:
            self._begin(connection, message)
        else:
            heapq.heappush(connection.queue, message)

    def reset(self, connection: Connection) -> int:
        """Break the connection: whatever is on it never arrives. Returns how many had not yet left."""
        lost = len(connection.queue) + (connection.sending is not None)
        self._settle(connection)
        connection.queue.clear()
        connection.epoch += 1
        connection.version += 1
        if connection.sending is not None:
            connection.sending = None
            self._idle.append(connection)
            self._stale = True
        return lost

    def set_rate(self, link: int, rate_bps: float) -> None:
        """Change a link's rate from now on; messages under way continue at their new share."""
        self._shares.set_capacity(link, rate_bps * self.efficiency)
        self._stale = True

    def set_delay(self, link: int, delay_ns: int) -> None:
        """Change a link's delay for messages that leave from now on; connections stay in order."""
        self._delay_ns[link] = delay_ns

    def rate_of(self, connection: Connection) -> float:
        """Present rate in bit/s of payload; 0 when the connection sends nothing."""
        if self._stale:
            self._flush()
        return connection.rate_bps if connection.sending is not None else 0.0

    def settle(self) -> None:
        """Account for the bits sent up to now on every link (`carried_bits`)."""
        for number in sorted(self._owner):
            self._settle(self._owner[number])

    def _begin(self, connection: Connection, message: _Message) -> None:
        connection.sending = message
        connection.left_bits = message.bits
        connection.since_ns = self.clock.now_ns
        if connection.share is None:
            connection.share = self._shares.add(connection.route, connection.cls)
            self._owner[connection.share.number] = connection
        self._begun.append(connection)
        self._stale = True

    def _settle(self, connection: Connection) -> None:
        elapsed = self.clock.now_ns - connection.since_ns
        if elapsed and connection.sending is not None:
            bits = min(connection.rate_bps * elapsed / SECOND, connection.left_bits)
            connection.left_bits -= bits
            for link in connection.route:
                self.carried_bits[link] += bits
        connection.since_ns = self.clock.now_ns

    def _flush(self) -> None:
        """Share the links anew after all events of this instant, and foresee when messages will have left."""
        if not self._stale:
            return
        self._stale = False
        for connection in self._idle:
            if connection.sending is None and connection.share is not None:
                self._shares.remove(connection.share, connection.cls)
                del self._owner[connection.share.number]
                connection.share, connection.rate_bps = None, 0.0
        self._idle.clear()
        foresee = self._begun
        self._begun = []
        for share in self._shares.update():
            connection = self._owner[share.number]
            self._settle(connection)
            connection.rate_bps = share.rate
            foresee.append(connection)
        for connection in dict.fromkeys(foresee):
            if connection.sending is not None:
                self._foresee(connection)

    def _foresee(self, connection: Connection) -> None:
        connection.version += 1
        if connection.left_bits <= 0:
            time_ns = self.clock.now_ns
        elif connection.rate_bps > 0:
            # Rounded up: a message never arrives before its last bit.
            time_ns = self.clock.now_ns - int(-connection.left_bits * SECOND // connection.rate_bps)
        else:
            return
        version = connection.version
        self.clock.at(time_ns, lambda: self._finish(connection, version))

    def _finish(self, connection: Connection, version: int) -> None:
        if version != connection.version or connection.sending is None:
            return
        message = connection.sending
        for link in connection.route:
            self.carried_bits[link] += connection.left_bits
        connection.left_bits = 0.0
        connection.sending = None
        connection.since_ns = self.clock.now_ns
        delay = sum(self._delay_ns[link] for link in connection.route)
        connection.arrival_ns = max(connection.arrival_ns, self.clock.now_ns + delay)
        epoch = connection.epoch

        def arrive() -> None:
            if epoch == connection.epoch:
                message.delivered()

        if connection.arrival_ns == self.clock.now_ns:
            arrive()
        else:
            self.clock.at(connection.arrival_ns, arrive)
        if connection.sending is None:
            if connection.queue:
                self._begin(connection, heapq.heappop(connection.queue))
            else:
                self._idle.append(connection)
                self._stale = True
