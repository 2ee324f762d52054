"""What a search asks for and what it is told.

A *trial* is one configuration with its training; a *stage* is a set of trials that each train to a boundary, counted
in iterations since the trial's beginning. With a barrier (all but ASHA) the next stage is decided when the last trial
of the stage has reported, so the stage completion time is exactly what the search waits for.

Scores: finite numbers, better as `goal` says; ties go to the lowest trial. A score that is not finite, or none
at all, is a trial that failed: it is never chosen to go on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from topologies.errors import StormbedError

Value = float | int | str | bool
Parameters = Mapping[str, Value]
Goal = Literal["min", "max"]
# What became of a trial: it trained to the end of the search, was not chosen to go on, or broke.
Outcome = Literal["complete", "stopped", "failed"]


class SearchError(StormbedError):
    """A search that makes no sense, or a report that does not belong to it."""

    exit_code = 2


@dataclass(frozen=True)
class TrialRun:
    """One trial's part of a stage.

    start   iterations that its state has behind it
    end     iterations at the boundary
    source  the trial whose state at `start` (weights, optimiser) it begins with: its own number where it goes on,
            another's where population based training copies; None = from scratch
    """

    trial: int
    parameters: Parameters
    start: int
    end: int
    source: int | None = None

    @property
    def iterations(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class StagePlan:
    """Trials to start together.

    id       of the search, ascending from 0 in the order in which they start
    bracket  of HyperBand, or the wave; 0 elsewhere
    rung     its place in the bracket
    barrier  whether the search waits for all of them; without it, stages of one trial each overlap
    """

    id: int
    bracket: int
    rung: int
    runs: tuple[TrialRun, ...]
    barrier: bool = True

    def __post_init__(self) -> None:
        if not self.runs:
            raise SearchError(f"stage {self.id} has no jobs", hint="a stage ends with its last job: give one")
        for run in self.runs:
            if run.iterations < 1:
                raise SearchError(
                    f"stage {self.id}: trial {run.trial} would go from iteration {run.start} to {run.end}",
                    hint="a job needs at least one",
                )


@dataclass(frozen=True)
class Rung:
    """A stage as the rules have it before any score is known: how many trials, from where to where."""

    bracket: int
    rung: int
    trials: int
    start: int
    end: int


@dataclass(frozen=True)
class Step:
    """What a report led to.

    stages   to start now
    ended    stages that this report ended
    stopped  trials that will not run again, ascending; their state can go, unless a stage of this step starts from it
    """

    stages: tuple[StagePlan, ...] = ()
    ended: tuple[int, ...] = ()
    stopped: tuple[int, ...] = ()


@dataclass(frozen=True)
class Best:
    """The best score of a search so far, and after how many iterations."""

    trial: int
    parameters: Parameters
    iterations: int
    score: float


@runtime_checkable
class Tuner(Protocol):
    """A search under way."""

    @property
    def name(self) -> str: ...

    @property
    def barrier(self) -> bool:
        """Whether its stages end with their last job. False: stage completion times are those of single trials."""
        ...

    @property
    def done(self) -> bool:
        """Nothing runs and nothing will."""
        ...

    @property
    def best(self) -> Best | None: ...

    @property
    def running(self) -> Mapping[int, StagePlan]:
        """Stages under way by their ids."""
        ...

    def rungs(self) -> tuple[Rung, ...]:
        """The stages in their order were no trial to fail. Without a barrier: at most so many trials."""
        ...

    def after(self, stage: int) -> tuple[Rung, ...]:
        """Of a stage under way: those of `rungs` that can begin only when it has ended. None without a barrier."""
        ...

    def start(self) -> Step: ...

    def report(self, stage: int, trial: int, score: float | None) -> Step:
        """A trial has reached its boundary with this score, or failed or was killed before (None).

        Raises SearchError where that trial is not under way in that stage.
        """
        ...


class Sampler(Protocol):
    """Where configurations come from: asked for one, told how it did."""

    def ask(self, trial: int) -> Parameters:
        """A configuration for a new trial."""
        ...

    def report(self, trial: int, iterations: int, score: float) -> None:
        """A score on the way, after so many iterations."""
        ...

    def end(self, trial: int, outcome: Outcome) -> None: ...


def is_score(score: float | None) -> bool:
    return score is not None and math.isfinite(score)


def best_first(scores: Mapping[int, float | None], goal: Goal) -> list[int]:
    """Trials with a score, the best first; equal ones by number."""
    sign = 1 if goal == "min" else -1
    known = [(sign * score, trial) for trial, score in scores.items() if score is not None and is_score(score)]
    return [trial for _, trial in sorted(known)]


def whole(owner: str, *named: tuple[str, object, int]) -> None:
    """Refuse what is not a whole number of at least so much; (name, value, least)."""
    for name, value, least in named:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise SearchError(f"{owner}: {name} is {value!r}", hint=f"a whole number of at least {least}")


def ascending(numbers: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(numbers))
