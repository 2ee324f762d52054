"""Configurations by chance, from a grid, or from a list. (Optuna's: `testbed.experiments.optuna_sampler`.)"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from agents.search.base import Outcome, Parameters, SearchError
from agents.search.space import Space


class _Deaf:
    """Does not learn from scores."""

    def report(self, trial: int, iterations: int, score: float) -> None:
        pass

    def end(self, trial: int, outcome: Outcome) -> None:
        pass


class RandomSampler(_Deaf):
    """Independent draws; a trial's configuration depends on the seed and its number alone."""

    def __init__(self, space: Space, seed: int) -> None:
        self._space = space
        self._seed = seed

    def ask(self, trial: int) -> Parameters:
        return self._space.sample(Random(f"{self._seed}:trial:{trial}"))


class ListSampler(_Deaf):
    """Given configurations, in order."""

    def __init__(self, configurations: Sequence[Parameters], name: str = "the list") -> None:
        self._configurations = configurations
        self._name = name

    def __len__(self) -> int:
        return len(self._configurations)

    def ask(self, trial: int) -> Parameters:
        if trial >= len(self):
            raise SearchError(
                f"{self._name} has {len(self)} configurations, none for trial {trial}", hint="ask for fewer trials"
            )
        return self._configurations[trial]


class GridSampler(ListSampler):
    """Every combination of a space without ranges, the last parameter changing fastest."""

    def __init__(self, space: Space) -> None:
        super().__init__(space.grid(), "the grid")
