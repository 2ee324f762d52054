"""Population based training (Jaderberg et al. 2017), synchronous: a stage is the way to the next exchange."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from agents.search.base import (
    Goal,
    Parameters,
    Rung,
    Sampler,
    SearchError,
    StagePlan,
    TrialRun,
    best_first,
    whole,
)
from agents.search.machine import Machine
from agents.search.space import Space


@dataclass(frozen=True)
class PopulationRules:
    """All trials train on; at every exchange the worst copy the best and vary what they copied.

    trials      of the population
    iterations  between two exchanges
    intervals   in all: there is one exchange less
    quantile    the share that is replaced, and the share that is copied (at least one trial of two)
    resample    probability that a copied parameter is drawn anew, not multiplied by 0.8 or 1.2
    """

    trials: int = 8
    iterations: int = 10
    intervals: int = 4
    quantile: float = 0.25
    resample: float = 0.25

    def __post_init__(self) -> None:
        whole("pbt", ("trials", self.trials, 2), ("iterations", self.iterations, 1), ("intervals", self.intervals, 1))
        for name, value, most in (("quantile", self.quantile, 0.5), ("resample", self.resample, 1)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
                raise SearchError(f"pbt: {name} is {value!r}", hint=f"from 0 to {most}")

    @property
    def exchanged(self) -> int:
        """How many are replaced at an exchange: the quantile rounded down, at least one if it is above 0."""
        return max(int(self.trials * self.quantile), 1) if self.quantile else 0


class Population(Machine):
    """A trial keeps its number when it is replaced: its run then names another as the source of its state.

    The source's state is that of the boundary, where every trial of the population stands still.
    """

    name: ClassVar[str] = "pbt"

    def __init__(
        self, rules: PopulationRules, sampler: Sampler, space: Space, goal: Goal = "min", seed: int = 0
    ) -> None:
        super().__init__(sampler, goal)
        self._rules = rules
        self._space = space
        self._seed = seed

    def rungs(self) -> tuple[Rung, ...]:
        rules = self._rules
        return tuple(
            Rung(0, rung, rules.trials, rung * rules.iterations, (rung + 1) * rules.iterations)
            for rung in range(rules.intervals)
        )

    def _first(self) -> list[StagePlan]:
        return [self._plan(0, 0, [self._fresh(self._rules.iterations) for _ in range(self._rules.trials)])]

    def _next(self, ended: StagePlan, scores: Mapping[int, float | None]) -> list[StagePlan]:
        ranked = best_first(scores, self._goal)
        if not ranked or ended.rung + 1 == self._rules.intervals:
            for run in ended.runs:
                self._end(run.trial, "failed" if scores[run.trial] is None else "complete")
            return []
        # Failed trials are replaced in any case; nobody is both copied and replaced.
        failed = [run.trial for run in ended.runs if scores[run.trial] is None]
        worst = ranked[::-1][: max(min(self._rules.exchanged, len(ranked) // 2) - len(failed), 0)]
        top = ranked[: min(max(self._rules.exchanged, 1), len(ranked) - len(worst))]
        start, end = ended.runs[0].end, ended.runs[0].end + self._rules.iterations
        runs: list[tuple[int, int, Parameters | None]] = []
        for run in ended.runs:
            if run.trial in worst or run.trial in failed:
                rng = Random(f"{self._seed}:pbt:{ended.id}:{run.trial}")
                source = rng.choice(top)
                changed = self._space.perturb(self._parameters[source], rng, self._rules.resample)
                runs.append((run.trial, source, changed))
            else:
                runs.append((run.trial, run.trial, None))
        # Copies are made of what the trials had, before any of them changes.
        for trial, _, fresh in runs:
            if fresh is not None:
                self._replace(trial, fresh, "failed" if trial in failed else "stopped")
        return [
            self._plan(
                0,
                ended.rung + 1,
                [TrialRun(trial, self._parameters[trial], start, end, source) for trial, source, _ in runs],
            )
        ]
