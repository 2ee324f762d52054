"""What an ordering is given and what it gives back.

Loads are seconds: the bytes a coflow still has to send over a directed link, divided by the link's rate. A
link is any number that names one: a port of a big switch, or `DirectedLink.index` of a topology. All numbers
may be floats or exact rationals (`fractions.Fraction`); the orderings compute with what they are given.

Ties: numbers within 1e-9 relative are equal; the lowest index goes first.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from topologies.errors import StormbedError

# float or Fraction; `Any` because the two share no type that has arithmetic.
Number = Any
Loads = Mapping[int, Number]
Allocation = Literal["fair", "greedy", "madd"]
Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)

# One over the relative distance below which numbers are equal: exact for rationals too.
TIE = 10**9
LEVELS = 8


class CoflowError(StormbedError):
    """A coflow, job or stage that makes no sense, or an ordering that cannot be had."""

    exit_code = 2


@dataclass(frozen=True)
class Coflow:
    """One synchronisation under way: a group of flows that matters when the last of them ends.

    id         ascending with the arrivals where an ordering breaks ties
    loads      seconds left on each link (links with nothing left may be missing)
    arrival    when it came, seconds
    size       bytes of all its flows at arrival
    sent       bytes sent so far
    isolation  seconds it would have needed alone, at arrival (its largest load then)
    weight     of its completion time
    job        the job it belongs to, if any
    """

    id: int
    loads: Loads
    arrival: Number = 0
    size: Number = 0
    sent: Number = 0
    isolation: Number = 0
    weight: Number = 1
    job: int | None = None


@dataclass(frozen=True)
class Job:
    """What a job still has to do until its stage ends.

    iterations  those of which nothing has been sent yet
    compute     seconds of computing before each synchronisation
    loads       seconds on each link of one synchronisation
    unsent      seconds on each link left of the synchronisation under way
    """

    id: int
    iterations: int
    compute: Number = 0
    loads: Loads = field(default_factory=dict)
    unsent: Loads = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.iterations < 0 or self.compute < 0:
            raise CoflowError(
                f"job {self.id} has {self.iterations} iterations left and computes {self.compute} s for each",
                hint="neither can be negative",
            )
        _check_loads(f"job {self.id}", self.loads)
        _check_loads(f"job {self.id}", self.unsent)

    @cached_property
    def remaining(self) -> Loads:
        """Seconds on each link until the stage ends."""
        total = dict(self.unsent)
        for link, load in self.loads.items():
            total[link] = total.get(link, 0) + self.iterations * load
        return total

    @cached_property
    def alone(self) -> Number:
        """Seconds until the stage ends were the network the job's own."""
        return self.iterations * (self.compute + largest(self.loads)) + largest(self.unsent)


@dataclass(frozen=True)
class Stage:
    """Jobs released together, done when the last of them is.

    release  when its jobs start, seconds; later than now where a tuner announces a stage
    ahead    expected seconds on each link of the stages that can begin only when this one has ended
    ahead_alone  expected seconds that those need one after the other on an empty network
    """

    id: int
    jobs: tuple[Job, ...]
    release: Number = 0
    weight: Number = 1
    ahead: Loads = field(default_factory=dict)
    ahead_alone: Number = 0

    def __post_init__(self) -> None:
        _check_loads(f"stage {self.id}, ahead,", self.ahead)
        if not self.jobs:
            raise CoflowError(f"stage {self.id} has no jobs", hint="a stage ends with its last job: give one")

    @cached_property
    def loads(self) -> Loads:
        """Seconds on each link of all its jobs until the stage ends."""
        total: dict[int, Number] = {}
        for job in self.jobs:
            for link, load in job.remaining.items():
                total[link] = total.get(link, 0) + load
        return total


@dataclass(frozen=True)
class View:
    """The coflows under way and the stages they belong to, at one moment."""

    now: Number
    coflows: tuple[Coflow, ...]
    stages: tuple[Stage, ...] = ()


@dataclass(frozen=True)
class Ranking:
    """Ids of coflows in classes, first class first. The coflows of one class share fairly.

    watch  rank again as soon as a coflow has sent so many bytes
    until  rank again at this time at the latest
    """

    classes: tuple[tuple[int, ...], ...]
    watch: Mapping[int, Number] = field(default_factory=dict)
    until: Number | None = None

    @classmethod
    def of(cls, order: Iterable[int], *, until: Number | None = None) -> Ranking:
        """Every coflow in a class of its own."""
        return cls(tuple((number,) for number in order), until=until)

    @property
    def order(self) -> tuple[int, ...]:
        return tuple(number for members in self.classes for number in members)


@runtime_checkable
class Ordering(Protocol):
    """Ranks the coflows under way. Asked at every arrival and completion, and when a ranking says so."""

    @property
    def name(self) -> str: ...

    @property
    def allocation(self) -> Allocation:
        """How rates follow the ranking, unless told otherwise."""
        ...

    @property
    def reads_loads(self) -> bool:
        """Whether it looks at the coflows' loads, which take time to bring up to date."""
        ...

    def order(self, view: View) -> Ranking: ...


def largest(loads: Loads) -> Number:
    return max(loads.values(), default=0)


def equal(a: Number, b: Number) -> bool:
    return abs(a - b) * TIE <= max(abs(a), abs(b))


def ascending(
    items: Iterable[Item], key: Callable[[Item], Number], index: Callable[[Item], int]
) -> list[Item]:
    """Sorted by key; among keys that are equal but for rounding, the lowest index first."""
    keyed = sorted(((key(item), index(item), item) for item in items), key=lambda entry: entry[:2])
    result: list[Item] = []
    start = 0
    while start < len(keyed):
        end = start + 1
        while end < len(keyed) and equal(keyed[start][0], keyed[end][0]):
            end += 1
        result += [item for _, _, item in sorted(keyed[start:end], key=lambda entry: entry[1])]
        start = end
    return result


def levels(ranked: Sequence[Key], count: int = LEVELS) -> dict[Key, int]:
    """The service class of each: `count - 1` for the first, one less for each next, 0 for all the rest."""
    return {item: max(count - 1 - rank, 0) for rank, item in enumerate(ranked)}


def _check_loads(owner: str, loads: Loads) -> None:
    for link, load in loads.items():
        if load < 0:
            raise CoflowError(f"{owner} has a load of {load} s on link {link}", hint="it cannot be negative")
