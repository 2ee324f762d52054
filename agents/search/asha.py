"""Asynchronous successive halving (Li et al., MLSys 2020): no barrier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from agents.search.base import Goal, Outcome, Rung, Sampler, StagePlan, TrialRun, best_first, whole
from agents.search.machine import Machine


@dataclass(frozen=True)
class AshaRules:
    """A free slot promotes a trial of the best 1/eta of some rung, the highest rung first; else it takes a new one.

    trials      in all
    slots       trials at once
    iterations  at which the first rung ends; every next one ends at eta times as many
    """

    trials: int = 16
    slots: int = 4
    eta: int = 4
    rungs: int = 3
    iterations: int = 1

    def __post_init__(self) -> None:
        whole("asha", ("trials", self.trials, 1), ("slots", self.slots, 1), ("eta", self.eta, 2))
        whole("asha", ("rungs", self.rungs, 1), ("iterations", self.iterations, 1))


class Asha(Machine):
    """Each promotion is a stage of one trial. Nothing waits for a rung, so no stage completion time is a barrier's.

    A trial is known to be out only when the search ends: until then a later one may make room for it.
    """

    name: ClassVar[str] = "asha"
    barrier: ClassVar[bool] = False

    def __init__(self, rules: AshaRules, sampler: Sampler, goal: Goal = "min") -> None:
        super().__init__(sampler, goal)
        self._rules = rules
        self._asked_for = 0
        self._free = rules.slots
        # Of every rung: the scores of those that have reached its end, and those that went on.
        self._reached: list[dict[int, float | None]] = [{} for _ in range(rules.rungs)]
        self._promoted: list[set[int]] = [set() for _ in range(rules.rungs)]

    def rungs(self) -> tuple[Rung, ...]:
        rules = self._rules
        ends = [rules.iterations * rules.eta**rung for rung in range(rules.rungs)]
        return tuple(
            Rung(0, rung, rules.trials // rules.eta**rung, start, end)
            for rung, (start, end) in enumerate(zip([0, *ends], ends, strict=False))
        )

    def _first(self) -> list[StagePlan]:
        return self._fill()

    def _next(self, ended: StagePlan, scores: Mapping[int, float | None]) -> list[StagePlan]:
        self._free += 1
        self._reached[ended.rung].update(scores)
        stages = self._fill()
        if self._free == self._rules.slots:
            for trial in range(self._asked_for):
                self._end(trial, self._outcome(trial))
        return stages

    def _outcome(self, trial: int) -> Outcome:
        if any(reached.get(trial, 0.0) is None for reached in self._reached):
            return "failed"
        return "complete" if trial in self._reached[-1] else "stopped"

    def _fill(self) -> list[StagePlan]:
        """Stages for the free slots, as far as there is anything to run."""
        stages = []
        while self._free and (run := self._promotion() or self._new()):
            rung, trial_run = run
            stages.append(self._plan(0, rung, [trial_run]))
            self._free -= 1
        return stages

    def _promotion(self) -> tuple[int, TrialRun] | None:
        for rung in reversed(range(self._rules.rungs - 1)):
            reached = self._reached[rung]
            for trial in best_first(reached, self._goal)[: len(reached) // self._rules.eta]:
                if trial not in self._promoted[rung]:
                    self._promoted[rung].add(trial)
                    start = self._rules.iterations * self._rules.eta**rung
                    return rung + 1, self._onward(trial, start, start * self._rules.eta)
        return None

    def _new(self) -> tuple[int, TrialRun] | None:
        if self._asked_for == self._rules.trials:
            return None
        self._asked_for += 1
        return 0, self._fresh(self._rules.iterations)
