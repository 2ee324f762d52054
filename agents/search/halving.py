"""Successive halving and HyperBand (Jamieson and Talwalkar 2016; Li et al., JMLR 18, 2018)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from agents.search.base import Goal, Rung, Sampler, SearchError, StagePlan, best_first, whole
from agents.search.machine import Machine


def bracket_rungs(bracket: int, trials: int, ends: tuple[int, ...], eta: int, resume: bool) -> tuple[Rung, ...]:
    """Of one bracket: rung i has 1/eta^i of the trials, rounded down."""
    starts = (0, *ends[:-1]) if resume else (0,) * len(ends)
    return tuple(
        Rung(bracket, rung, trials // eta**rung, start, end)
        for rung, (start, end) in enumerate(zip(starts, ends, strict=True))
    )


@dataclass(frozen=True)
class HalvingRules:
    """Of `trials`, the best 1/eta go on to each next rung.

    iterations  at which the first rung ends; every next one ends at eta times as many
    resume      a trial goes on from its own state; else every rung trains from scratch
    """

    trials: int = 8
    eta: int = 2
    rungs: int = 4
    iterations: int = 10
    resume: bool = True

    def __post_init__(self) -> None:
        whole("halving", ("trials", self.trials, 1), ("eta", self.eta, 2), ("rungs", self.rungs, 1))
        whole("halving", ("iterations", self.iterations, 1))
        if self.trials < self.eta ** (self.rungs - 1):
            raise SearchError(
                f"halving: {self.trials} trials leave none for rung {self.rungs} at eta {self.eta}",
                hint=f"at least {self.eta ** (self.rungs - 1)} trials, or fewer rungs",
            )

    def brackets(self) -> tuple[tuple[Rung, ...], ...]:
        ends = tuple(self.iterations * self.eta**rung for rung in range(self.rungs))
        return (bracket_rungs(0, self.trials, ends, self.eta, self.resume),)


@dataclass(frozen=True)
class HyperbandRules:
    """Brackets of halving from many short trials to few long ones, one after the other.

    max_iterations  R of the paper: the iterations of a trial that reaches the end
    together        all brackets at once: several stages of one search are then under way
    resume          as for halving

    Bracket s, from the largest with eta^s <= R down to 0, begins with ceil((s_max + 1) eta^s / (s + 1)) trials
    that train for R / eta^s iterations, rounded down.
    """

    max_iterations: int = 81
    eta: int = 3
    together: bool = False
    resume: bool = True

    def __post_init__(self) -> None:
        whole("hyperband", ("max_iterations", self.max_iterations, 1), ("eta", self.eta, 2))

    def brackets(self) -> tuple[tuple[Rung, ...], ...]:
        most = 0
        while self.eta ** (most + 1) <= self.max_iterations:
            most += 1
        found = []
        for number, s in enumerate(range(most, -1, -1)):
            trials = -(-(most + 1) * self.eta**s // (s + 1))
            ends = tuple(self.max_iterations // self.eta ** (s - rung) for rung in range(s + 1))
            found.append(bracket_rungs(number, trials, ends, self.eta, self.resume))
        return tuple(found)


class _Brackets(Machine):
    def __init__(self, rules: HalvingRules | HyperbandRules, sampler: Sampler, goal: Goal = "min") -> None:
        super().__init__(sampler, goal)
        self._resume = rules.resume
        self._together = isinstance(rules, HyperbandRules) and rules.together
        self._brackets = rules.brackets()

    def rungs(self) -> tuple[Rung, ...]:
        return tuple(rung for bracket in self._brackets for rung in bracket)

    def after(self, stage: int) -> tuple[Rung, ...]:
        later = super().after(stage)
        if not self._together:
            return later
        return tuple(rung for rung in later if rung.bracket == self._stages[stage].bracket)

    def _first(self) -> list[StagePlan]:
        count = len(self._brackets) if self._together else 1
        return [self._open(bracket) for bracket in range(count)]

    def _open(self, bracket: int) -> StagePlan:
        first = self._brackets[bracket][0]
        return self._plan(bracket, 0, [self._fresh(first.end) for _ in range(first.trials)])

    def _next(self, ended: StagePlan, scores: Mapping[int, float | None]) -> list[StagePlan]:
        bracket = self._brackets[ended.bracket]
        ranked = best_first(scores, self._goal)
        last = ended.rung + 1 == len(bracket)
        kept = [] if last else ranked[: bracket[ended.rung + 1].trials]
        for run in ended.runs:
            if run.trial not in kept:
                lost = scores[run.trial] is None
                self._end(run.trial, "failed" if lost else "complete" if last else "stopped")
        if kept:
            to = bracket[ended.rung + 1]
            runs = [self._onward(trial, to.start, to.end, resume=self._resume) for trial in sorted(kept)]
            return [self._plan(ended.bracket, to.rung, runs)]
        if not self._together and ended.bracket + 1 < len(self._brackets):
            return [self._open(ended.bracket + 1)]
        return []


class Halving(_Brackets):
    """Successive halving: a stage is a rung, its survivors the next."""

    name: ClassVar[str] = "halving"


class Hyperband(_Brackets):
    """HyperBand: successive halving in every bracket; where all trials of a rung fail the bracket ends."""

    name: ClassVar[str] = "hyperband"
