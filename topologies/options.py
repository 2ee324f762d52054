"""What may stand behind a `?` in a topology's name: rates and delays given from outside.

`geant.gml?default-rate=100mbit`, `b4?rate=20mbit..155mbit&seed=3&delay=10ms`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Self

from topologies.errors import UsageError, nearest
from topologies.geo import delay_over, distance_km
from topologies.model import Topology
from topologies.units import Delay, Rate
from topologies.validation import validated

BY_DISTANCE = "distance"
KEYS = ("rate", "default-rate", "delay", "seed")


@dataclass(frozen=True, slots=True)
class RateRule:
    """One rate for all, or a uniform draw for each direction of each link, in whole Mbit/s where both ends
    of the range are whole, else in whole bit/s.
    """

    low: Rate
    high: Rate

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `100mbit` or `20mbit..155mbit`."""
        first, separator, second = text.partition("..")
        low = Rate.parse(first)
        high = Rate.parse(second) if separator else low
        if low > high:
            raise UsageError(f"the range of rates {text!r} ends below its beginning", hint="swap the two")
        return cls(low, high)

    def draw(self, source: random.Random) -> Rate:
        step = 10**6 if self.low.bps % 10**6 == self.high.bps % 10**6 == 0 else 1
        choices = (self.high.bps - self.low.bps) // step + 1
        # Not randint: random() gives the same sequence in every version of Python.
        return Rate(self.low.bps + int(source.random() * choices) * step)


@dataclass(frozen=True, slots=True)
class Options:
    """Read from a name.

    `rate` replaces every rate, `default_rate` serves the links that their file gives none; `delay` replaces
    every delay, by one value or (BY_DISTANCE) by the sites' positions. `seed` is for ranges of rates.
    """

    rate: RateRule | None = None
    default_rate: RateRule | None = None
    delay: Delay | str | None = None
    seed: int = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what stands behind the `?`; UsageError naming what is wrong."""
        given: dict[str, str] = {}
        for part in text.split("&"):
            key, separator, value = part.partition("=")
            if key not in KEYS:
                raise UsageError(f"unknown option {key[:40]!r} of a topology", hint=nearest(key, KEYS))
            if not separator or not value:
                raise UsageError(f"the option {key} has no value", hint=f"write {key}=...")
            if key in given:
                raise UsageError(f"the option {key} is given twice", hint="keep one of them")
            given[key] = value
        seed = given.get("seed", "1")
        if not seed.isdecimal() or len(seed) > 10:
            raise UsageError(f"{seed[:40]!r} is not a seed", hint="use a whole number such as seed=1")
        delay = given.get("delay")
        return cls(
            rate=RateRule.parse(given["rate"]) if "rate" in given else None,
            default_rate=RateRule.parse(given["default-rate"]) if "default-rate" in given else None,
            delay=delay if delay in (None, BY_DISTANCE) else Delay.parse(delay or ""),
            seed=int(seed),
        )

    def apply(self, topology: Topology) -> Topology:
        """The topology with `rate` and `delay` put in the place of its own."""
        if self.rate is None and self.delay is None:
            return topology
        data = topology.to_dict()
        source = random.Random(self.seed)
        for link, forward in zip(data["links"], topology.directed[::2], strict=True):
            if self.rate is not None:
                there, back = self.rate.draw(source), self.rate.draw(source)
                _put(link, "rate", str(there), str(back))
            if self.delay is not None:
                delay = self._delay(topology, forward.src_name, forward.dst_name)
                _put(link, "delay", str(delay), str(delay))
        return validated(Topology, data, topology.name)

    def _delay(self, topology: Topology, *ends: str) -> Delay:
        if isinstance(self.delay, Delay):
            return self.delay
        positions = []
        for end in ends:
            site = topology.sites[end]
            if site.lat is None or site.lon is None:
                raise UsageError(
                    f"{topology.name}: {end} has no lat and lon, so it has no distance to its neighbours",
                    hint="write delay=10ms, one value for all",
                )
            positions.append((site.lat, site.lon))
        return delay_over(distance_km(*positions))


def _put(link: dict[str, object], key: str, there: str, back: str) -> None:
    """Set a value of both directions of a link that `Topology.to_dict` wrote."""
    for side, value in (("forward", there), ("backward", back)):
        half = dict(link.get(side) or {})  # type: ignore[call-overload]
        half.pop(key, None)
        if there != back:
            half[key] = value
        if half:
            link[side] = half
        else:
            link.pop(side, None)
    if there == back:
        link[key] = there
    else:
        link.pop(key, None)
