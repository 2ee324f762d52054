"""What a search varies: a range or a choice for every parameter.

As in a file: `{low: 0.001, high: 0.1, log: true}` is a range (of whole numbers where both ends are), a list is a
choice, anything else is fixed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from agents.search.base import Parameters, SearchError, Value

# Of population based training's explore step (Jaderberg et al. 2017): one of the two, at even odds.
FACTORS = (0.8, 1.2)


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, both included; `whole` ones only, even on a logarithmic scale if `log`."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def sample(self, rng: Random) -> Value:
        if self.whole and not self.log:
            return rng.randint(int(self.low), int(self.high))
        if not self.log:
            return rng.uniform(self.low, self.high)
        # Whole numbers get each the share of its surroundings, as if rounded.
        margin = 0.5 if self.whole else 0.0
        return self._clip(math.exp(rng.uniform(math.log(self.low - margin), math.log(self.high + margin))))

    def perturb(self, value: Value, rng: Random) -> Value:
        factor = rng.choice(FACTORS)
        if not isinstance(value, int | float):
            return self.sample(rng)
        moved = value * factor
        if self.whole and round(moved) == value:
            moved = value + (1 if factor > 1 else -1)
        return self._clip(moved)

    def _clip(self, value: float) -> Value:
        clipped = min(max(value, self.low), self.high)
        return round(clipped) if self.whole else clipped


@dataclass(frozen=True)
class Choice:
    """One of a list, in whose order neighbours are alike."""

    values: tuple[Value, ...]

    def sample(self, rng: Random) -> Value:
        return rng.choice(self.values)

    def perturb(self, value: Value, rng: Random) -> Value:
        """The value before or after it, as far as there is one."""
        step = rng.choice((-1, 1))
        if value not in self.values:
            return self.sample(rng)
        place = self.values.index(value) + step
        return self.values[min(max(place, 0), len(self.values) - 1)]


Domain = Range | Choice


@dataclass(frozen=True)
class Space:
    """Parameters by name, in the order in which they were given."""

    domains: Mapping[str, Domain]

    @classmethod
    def parse(cls, given: Mapping[str, Any], owner: str = "parameters") -> Space:
        """From plain values as a file holds them; errors name the parameter after `owner`."""
        return cls({str(name): _domain(f"{owner}.{name}", value) for name, value in given.items()})

    def sample(self, rng: Random) -> Parameters:
        return {name: domain.sample(rng) for name, domain in self.domains.items()}

    def perturb(self, parameters: Parameters, rng: Random, resample: float) -> Parameters:
        """Another configuration near this one; each parameter anew with probability `resample`."""
        changed: dict[str, Value] = {}
        for name, domain in self.domains.items():
            anew = rng.random() < resample
            changed[name] = domain.sample(rng) if anew else domain.perturb(parameters[name], rng)
        return changed

    def grid(self) -> list[Parameters]:
        """Every combination of choices, the last parameter changing fastest. SearchError if there is a range."""
        points: list[dict[str, Value]] = [{}]
        for name, domain in self.domains.items():
            if not isinstance(domain, Choice):
                raise SearchError(f"a grid over {name}, which is a range", hint="list its values")
            points = [{**point, name: value} for point in points for value in domain.values]
        return list(points)


def _domain(where: str, given: Any) -> Domain:
    if isinstance(given, Mapping):
        return _range(where, given)
    if isinstance(given, Sequence) and not isinstance(given, str):
        values = tuple(_value(where, value) for value in given)
        if not values:
            raise SearchError(f"{where} has nothing to choose from", hint="list at least one value")
        if len({(type(value), value) for value in values}) < len(values):
            raise SearchError(f"{where} lists a value twice", hint="list each once")
        return Choice(values)
    return Choice((_value(where, given),))


def _range(where: str, given: Mapping[Any, Any]) -> Range:
    unknown = [str(key) for key in given if key not in ("low", "high", "log")]
    if unknown or "low" not in given or "high" not in given:
        raise SearchError(
            f"{where}: no range in {dict(given)!r}", hint="low and high, and log: true where it is meant"
        )
    low, high, log = given["low"], given["high"], given.get("log", False)
    for end in (low, high):
        if isinstance(end, bool) or not isinstance(end, int | float) or not math.isfinite(end):
            raise SearchError(f"{where}: {end!r} ends no range", hint="a finite number; 1.0e-3 rather than 1e-3")
    if not isinstance(log, bool):
        raise SearchError(f"{where}: log is {log!r}", hint="true or false")
    if not low < high:
        raise SearchError(f"{where}: from {low} to {high}", hint="low is less than high")
    if log and low <= 0:
        raise SearchError(f"{where}: a logarithmic range from {low}", hint="low is more than 0 there")
    return Range(low, high, log, isinstance(low, int) and isinstance(high, int))


def _value(where: str, value: Any) -> Value:
    if isinstance(value, float) and not math.isfinite(value):
        raise SearchError(f"{where}: {value} is no value", hint="finite numbers, words, true or false")
    if not isinstance(value, bool | int | float | str):
        raise SearchError(f"{where}: {value!r} is no value", hint="numbers, words, true or false")
    return value
