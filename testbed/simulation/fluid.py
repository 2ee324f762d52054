"""Messages over a network of fluid links: what the agents' connections do, without packets.

Every connection follows one path in one class and sends one message at a time, the rest waits in its own
queue; connections that are sending share the links max-min fairly, higher classes first. A message has
arrived one path delay after its last bit left. No losses, no slow start, no headers but a constant share
(`efficiency`).

A connection can stall (its path is cut) and resume, perhaps over other links: what was on the wire is then sent
again, as TCP does. When it resumes is not decided here.
"""

from __future__ import annotations

import heapq
from collections import deque
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


@dataclass(order=True, slots=True)
class Message:
    """Something to carry.

    left_ns  when it began to leave its queue; -1 before
    follows  then: True: the message before had just left; False: it had arrived; None: it was under way
    """

    order: Order
    number: int
    bits: float = field(compare=False)
    delivered: Delivered = field(compare=False)
    left_ns: int = field(default=-1, compare=False)
    follows: bool | None = field(default=False, compare=False)


@dataclass(eq=False)
class Connection:
    """A queue of messages from one site to another over some links. Made by `FluidNetwork.connect`.

    sent_bits  of all messages that have left, what was sent again included
    stalled    nothing leaves
    """

    route: tuple[int, ...]
    cls: int
    share: Share | None = None
    sending: Message | None = None
    left_bits: float = 0.0
    rate_bps: float = 0.0
    since_ns: int = 0
    version: int = 0
    epoch: int = 0
    arrival_ns: int = 0
    queue: list[Message] = field(default_factory=list)
    flight: deque[Message] = field(default_factory=deque)  # have left, have not arrived
    again: deque[Message] = field(default_factory=deque)  # to be sent before the queue
    last_left_ns: int = -1  # when the last bit of the latest message left
    last_rate_bps: float = 0.0  # and how fast
    sent_bits: float = 0.0
    stalled: bool = False

    @property
    def waiting(self) -> int:
        """Messages in the queue, the one being sent not counted."""
        return len(self.queue)

    @property
    def outstanding(self) -> bool:
        """Whether something has begun to leave and has not arrived."""
        return self.sending is not None or bool(self.flight) or bool(self.again)


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

    def send(
        self, connection: Connection, nbytes: int, delivered: Delivered, order: Order = ()
    ) -> Message:
        """Queue a message; least `order` first, equal ones in order of sending. Calls back on arrival."""
        self.messages += 1
        message = Message(order, self.messages, 8.0 * nbytes + self.per_message_bits, delivered)
        if connection.sending is None and not connection.stalled:
            self._begin(connection, message)
        elif connection.stalled and not connection.again:
            # Its first bits leave, and are lost.
            self._stamp(connection, message)
            connection.again.append(message)
        else:
            heapq.heappush(connection.queue, message)
        return message

    def reset(self, connection: Connection) -> int:
        """Break the connection: whatever is on it never arrives. Returns how many had not yet left."""
        lost = len(connection.queue) + len(connection.again) + (connection.sending is not None)
        self._settle(connection)
        connection.queue.clear()
        connection.again.clear()
        connection.flight.clear()
        connection.epoch += 1
        connection.version += 1
        if connection.sending is not None:
            connection.sending = None
            self._idle.append(connection)
            self._stale = True
        return lost

    def stall(self, connection: Connection) -> None:
        """Nothing leaves any more, and what is on the wire is lost: it will be sent again."""
        if connection.stalled:
            return
        connection.stalled = True
        connection.epoch += 1
        connection.version += 1
        on_wire = (connection.rate_bps or connection.last_rate_bps) * self._delay(connection) / SECOND
        lost = connection.flight
        connection.flight = deque()
        for message in lost:
            message.bits = min(message.bits, on_wire)
        if connection.sending is not None:
            self._settle(connection)
            message = connection.sending
            message.bits = min(message.bits, connection.left_bits + on_wire)
            connection.sending = None
            lost.append(message)
        lost.extend(connection.again)
        connection.again = lost
        self._withdraw(connection)

    def resume(self, connection: Connection) -> None:
        """Send again what was lost, then what waits."""
        if not connection.stalled:
            return
        connection.stalled = False
        self._next(connection)

    def reroute(self, connection: Connection, route: Sequence[int]) -> None:
        """Send over other links from now on; what has left arrives as it would have."""
        if connection.route == tuple(route):
            return
        self._settle(connection)
        self._withdraw(connection)
        connection.route = tuple(route)
        if connection.sending is not None:
            self._offer(connection)

    def _withdraw(self, connection: Connection) -> None:
        if connection.share is not None:
            self._shares.remove(connection.share, connection.cls)
            del self._owner[connection.share.number]
            connection.share, connection.rate_bps = None, 0.0
            self._stale = True

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

    def _begin(self, connection: Connection, message: Message) -> None:
        if message.left_ns < 0:
            self._stamp(connection, message)
        connection.sending = message
        connection.left_bits = message.bits
        connection.since_ns = self.clock.now_ns
        self._offer(connection)

    def _offer(self, connection: Connection) -> None:
        """Take part in sharing the links."""
        if connection.share is None:
            connection.share = self._shares.add(connection.route, connection.cls)
            self._owner[connection.share.number] = connection
        self._begun.append(connection)
        self._stale = True

    def _stamp(self, connection: Connection, message: Message) -> None:
        now = message.left_ns = self.clock.now_ns
        if connection.last_left_ns == now:
            message.follows = True
        elif now < connection.arrival_ns:
            message.follows = None

    def _next(self, connection: Connection) -> None:
        if connection.again:
            self._begin(connection, connection.again.popleft())
        elif connection.queue:
            self._begin(connection, heapq.heappop(connection.queue))
        else:
            self._idle.append(connection)
            self._stale = True

    def _delay(self, connection: Connection) -> int:
        return sum(self._delay_ns[link] for link in connection.route)

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
        now = self.clock.now_ns
        connection.left_bits = 0.0
        connection.sending = None
        connection.since_ns = connection.last_left_ns = now
        connection.last_rate_bps = connection.rate_bps
        connection.sent_bits += message.bits
        connection.arrival_ns = max(connection.arrival_ns, now + self._delay(connection))
        if connection.arrival_ns == now:
            message.delivered()
        else:
            epoch = connection.epoch
            connection.flight.append(message)

            def arrive() -> None:
                if epoch == connection.epoch:
                    connection.flight.popleft().delivered()

            self.clock.at(connection.arrival_ns, arrive)
        if connection.sending is None and not connection.stalled:
            self._next(connection)
