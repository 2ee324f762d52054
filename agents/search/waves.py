"""Random and grid search: every configuration trains to the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from agents.search.base import Goal, Rung, Sampler, StagePlan, whole
from agents.search.machine import Machine


@dataclass(frozen=True)
class WavesRules:
    """All trials at once, or `wave` at a time; a wave is a stage.

    trials      in all; of a grid None means every point
    iterations  of each
    """

    trials: int | None = None
    iterations: int = 10
    wave: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("trials", self.trials), ("wave", self.wave)):
            if value is not None:
                whole("the search", (name, value, 1))
        whole("the search", ("iterations", self.iterations, 1))


class Waves(Machine):
    """One wave after the other, whatever the scores."""

    name: ClassVar[str] = "random"

    def __init__(self, rules: WavesRules, sampler: Sampler, trials: int, goal: Goal = "min") -> None:
        super().__init__(sampler, goal)
        self._end_at = rules.iterations
        size = rules.wave or trials
        self._waves = [min(size, trials - first) for first in range(0, trials, size)]

    def rungs(self) -> tuple[Rung, ...]:
        return tuple(Rung(wave, 0, trials, 0, self._end_at) for wave, trials in enumerate(self._waves))

    def _first(self) -> list[StagePlan]:
        return [self._open(0)]

    def _open(self, wave: int) -> StagePlan:
        return self._plan(wave, 0, [self._fresh(self._end_at) for _ in range(self._waves[wave])])

    def _next(self, ended: StagePlan, scores: Mapping[int, float | None]) -> list[StagePlan]:
        for run in ended.runs:
            self._end(run.trial, "failed" if scores[run.trial] is None else "complete")
        return [self._open(ended.bracket + 1)] if ended.bracket + 1 < len(self._waves) else []


class Grid(Waves):
    """Random search but for where its configurations come from."""

    name: ClassVar[str] = "grid"
