"""From a ranking to what agents enforce: for every job a service class, a place in it, and who shares.

A map is published whole and carries a version; agents keep the newest one and go on with it for ever when no
newer one comes (own; Beamer and JPAS order jobs by priority levels as well).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from agents.coflow.base import LEVELS, CoflowError

Enforcement = Literal["gate", "dscp", "both"]
ENFORCEMENTS: tuple[Enforcement, ...] = get_args(Enforcement)


@dataclass(frozen=True)
class Place:
    """Where a job's chunks stand.

    level   service class of its packets: 7 goes first, 0 last
    rank    among the jobs of one level at one sender, the smallest goes first; equals share
    shared  it sends over connections of its own, so that it shares with its equals as TCP connections do
    """

    level: int = 0
    rank: int = 0
    shared: bool = False


@dataclass(frozen=True)
class LevelMap:
    """Places of jobs by the runner's names for them. A job that is not named stands last, at level 0.

    version      counts up with every map of one coordinator
    enforcement  by whom: the sender's gate, the network's classes, or both
    """

    version: int
    enforcement: Enforcement
    places: Mapping[str, Place] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the wire; the inverse of `from_dict`."""
        return {
            "version": self.version,
            "enforcement": self.enforcement,
            "places": {job: [p.level, p.rank, p.shared] for job, p in self.places.items()},
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> LevelMap:
        """Raises CoflowError for what no coordinator publishes."""
        try:
            places = {
                str(job): Place(int(level), int(rank), bool(shared))
                for job, (level, rank, shared) in plain["places"].items()
            }
            version, enforcement = int(plain["version"]), plain["enforcement"]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CoflowError(f"not a map of levels: {error!r}") from None
        if enforcement not in ENFORCEMENTS:
            raise CoflowError(f"enforcement {enforcement!r}", hint=", ".join(ENFORCEMENTS))
        for job, place in places.items():
            if not 0 <= place.level < LEVELS:
                raise CoflowError(f"job {job} at level {place.level}", hint=f"levels are 0 to {LEVELS - 1}")
        return cls(version, enforcement, places)


def place_classes(classes: Iterable[Sequence[str]], *, shared: bool = False, count: int = LEVELS) -> dict[str, Place]:
    """Places of jobs in classes, first class first: the first at the highest level, the last ones at 0.

    The members of a class are equals.
    """
    return {
        job: Place(max(count - 1 - number, 0), number, shared)
        for number, members in enumerate(classes)
        for job in members
    }


def place_stages(stages: Iterable[Sequence[str]], count: int = LEVELS) -> dict[str, Place]:
    """Places of jobs in stages: a level a stage, within it the first named goes first at every sender."""
    places: dict[str, Place] = {}
    for number, members in enumerate(stages):
        for job in members:
            places[job] = Place(max(count - 1 - number, 0), len(places))
    return places
