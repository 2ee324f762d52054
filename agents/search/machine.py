"""What all searches share: who runs where, what was reported, what the sampler is told."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar

from agents.search.base import (
    Best,
    Goal,
    Outcome,
    Parameters,
    Rung,
    Sampler,
    SearchError,
    StagePlan,
    Step,
    TrialRun,
    ascending,
    is_score,
)


class Machine(ABC):
    """A `Tuner` but for its rules: `_first` gives the first stages, `_next` those after one has ended."""

    name: ClassVar[str]
    barrier: ClassVar[bool] = True

    def __init__(self, sampler: Sampler, goal: Goal) -> None:
        if goal not in ("min", "max"):
            raise SearchError(f"{self.name}: a goal {goal!r}", hint="min or max")
        self._sampler = sampler
        self._goal: Goal = goal
        self._stages: dict[int, StagePlan] = {}
        self._waiting: dict[int, dict[int, TrialRun]] = {}
        self._scores: dict[int, dict[int, float | None]] = {}
        self._parameters: dict[int, Parameters] = {}
        # Trials whose configuration is still the sampler's own, so that it learns from their scores.
        self._asked: set[int] = set()
        self._stopped: list[int] = []
        self._stage_count = 0
        self._started = False
        self._best: Best | None = None

    @property
    def done(self) -> bool:
        return self._started and not self._stages

    @property
    def best(self) -> Best | None:
        return self._best

    @property
    def running(self) -> Mapping[int, StagePlan]:
        return MappingProxyType(self._stages)

    @abstractmethod
    def rungs(self) -> tuple[Rung, ...]: ...

    @abstractmethod
    def _first(self) -> list[StagePlan]:
        """The stages to begin with."""

    @abstractmethod
    def _next(self, ended: StagePlan, scores: Mapping[int, float | None]) -> list[StagePlan]:
        """The stages that follow one of which all trials have reported; calls `_end` for trials that stop."""

    def after(self, stage: int) -> tuple[Rung, ...]:
        plan = self._stages.get(stage)
        if plan is None:
            raise SearchError(f"{self.name}: stage {stage} is not under way")
        here = (plan.bracket, plan.rung)
        return tuple(rung for rung in self.rungs() if self.barrier and (rung.bracket, rung.rung) > here)

    def start(self) -> Step:
        if self._started:
            raise SearchError(f"{self.name} has started already", hint="a search runs once")
        self._started = True
        return self._step(self._first(), ())

    def report(self, stage: int, trial: int, score: float | None) -> Step:
        waiting = self._waiting.get(stage)
        if waiting is None or trial not in waiting:
            raise SearchError(
                f"{self.name}: trial {trial} is not under way in stage {stage}",
                hint="report each trial of a stage once",
            )
        run = waiting.pop(trial)
        self._scores[stage][trial] = score if is_score(score) else None
        if score is not None and is_score(score):
            if trial in self._asked:
                self._sampler.report(trial, run.end, score)
            better = self._best is None or (
                score < self._best.score if self._goal == "min" else score > self._best.score
            )
            if better:
                self._best = Best(trial, run.parameters, run.end, score)
        if waiting:
            return Step()
        plan = self._stages.pop(stage)
        del self._waiting[stage]
        return self._step(self._next(plan, self._scores.pop(stage)), (stage,))

    def _step(self, stages: Sequence[StagePlan], ended: tuple[int, ...]) -> Step:
        for plan in stages:
            self._stages[plan.id] = plan
            self._waiting[plan.id] = {run.trial: run for run in plan.runs}
            self._scores[plan.id] = {}
        stopped, self._stopped = ascending(self._stopped), []
        return Step(tuple(stages), ended, stopped)

    def _ask(self) -> int:
        """A new trial; its number."""
        trial = len(self._parameters)
        self._parameters[trial] = dict(self._sampler.ask(trial))
        self._asked.add(trial)
        return trial

    def _end(self, trial: int, outcome: Outcome) -> None:
        """A trial that will not run again."""
        if trial in self._asked:
            self._asked.discard(trial)
            self._sampler.end(trial, outcome)
        self._stopped.append(trial)

    def _replace(self, trial: int, parameters: Parameters, outcome: Outcome) -> None:
        """A trial that goes on with another configuration: for the sampler, its own has ended."""
        if trial in self._asked:
            self._asked.discard(trial)
            self._sampler.end(trial, outcome)
        self._parameters[trial] = parameters

    def _plan(self, bracket: int, rung: int, runs: Sequence[TrialRun]) -> StagePlan:
        plan = StagePlan(self._stage_count, bracket, rung, tuple(runs), self.barrier)
        self._stage_count += 1
        return plan

    def _fresh(self, end: int) -> TrialRun:
        trial = self._ask()
        return TrialRun(trial, self._parameters[trial], 0, end)

    def _onward(self, trial: int, start: int, end: int, *, resume: bool = True) -> TrialRun:
        """A trial to a further boundary, from its state at `start`, or from scratch."""
        if resume:
            return TrialRun(trial, self._parameters[trial], start, end, trial)
        return TrialRun(trial, self._parameters[trial], 0, end)
