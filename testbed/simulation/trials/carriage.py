"""How messages travel in a trial: connections that keep their order, and datagrams that keep nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from testbed.simulation.clock import SECOND, VirtualClock

MS = SECOND // 1000
MOST_DELAY_NS = 40 * MS
# A message that a lossy connection loses is sent again after this time, and after twice as long the next time.
RETRY_NS = 20 * MS

Key = tuple[str, int, int, int]
"""A connection: job, sender, receiver, path."""


@dataclass(eq=False)
class Channel:
    """One connection: in order, each message after a random delay. A reset sends again what may be lost."""

    arrival_ns: int = 0
    epoch: int = 0
    delivered: int = 0
    log: list[Callable[[], None]] = field(default_factory=list)


class Carriage:
    """All connections of a trial.

    duplicate  how probable it is that a message arrives a second time, late
    lose       how probable it is that a message is lost on its way and sent again, and its acknowledgement
               lost and so it, too

    messages, lost  how many were put on connections, and how often one was lost there
    """

    def __init__(
        self, rng: random.Random, clock: VirtualClock, *, duplicate: float = 0.0, lose: float = 0.0
    ) -> None:
        self.messages = self.lost = 0
        self._rng = rng
        self._clock = clock
        self._duplicate = duplicate
        self._lose = lose
        self._channels: dict[Key, Channel] = {}

    def put(self, key: Key, deliver: Callable[[], None]) -> None:
        """Send a message on a connection."""
        self._put(self._channels.setdefault(key, Channel()), deliver)

    def _put(self, channel: Channel, deliver: Callable[[], None]) -> None:
        rng, now = self._rng, self._clock.now_ns
        self.messages += 1
        channel.log.append(deliver)
        delay = rng.randrange(MOST_DELAY_NS // 20 if rng.random() < 0.8 else MOST_DELAY_NS)
        retry = RETRY_NS
        while self._lose and rng.random() < self._lose:
            self.lost += 1
            delay += retry
            retry *= 2
        channel.arrival_ns = max(channel.arrival_ns, now + delay)
        epoch = channel.epoch

        def arrive() -> None:
            if epoch == channel.epoch:
                channel.delivered += 1
                deliver()

        self._clock.at(channel.arrival_ns, arrive)
        if self._duplicate and rng.random() < self._duplicate:
            self._clock.at(channel.arrival_ns + rng.randrange(100 * MS), deliver)
        if self._lose and rng.random() < self._lose:
            self.lost += 1
            self._clock.at(channel.arrival_ns + retry, deliver)

    def datagram(self, deliver: Callable[[], None]) -> None:
        """Send something that may be lost, come twice, and overtake."""
        rng = self._rng
        self.messages += 1
        if rng.random() < 0.3:
            self.lost += 1
            return
        for _ in range(2 if rng.random() < 0.2 else 1):
            self._clock.after(rng.randrange(MOST_DELAY_NS), deliver)

    def reset_one(self) -> str | None:
        """A connection breaks and comes back: what had not arrived is sent again, perhaps more than that."""
        if not self._channels:
            return None
        key = self._rng.choice(sorted(self._channels))
        channel = self._channels[key]
        channel.epoch += 1
        again = channel.log[max(0, channel.delivered - self._rng.randrange(4)) :]
        channel.log = channel.log[: channel.delivered]
        channel.arrival_ns = self._clock.now_ns + self._rng.randrange(60 * MS)
        for deliver in again:
            self._put(channel, deliver)
        return f"connection {key} resets, {len(again)} messages are sent again"

    def end(self, which: Callable[[int, int], bool], probability: float = 1.0) -> None:
        """Connections, by sender and receiver, end with all that is on them."""
        for (_, src, dst, _), channel in sorted(self._channels.items(), key=lambda item: item[0]):
            if which(src, dst) and (probability == 1.0 or self._rng.random() < probability):
                channel.epoch += 1
