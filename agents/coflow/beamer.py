"""Beamer: stages of hyper-parameter searches in the order of BSSI, critical jobs first.

After He et al., "Beamer", IEEE TNSM 19(2), 2022. The paper's algorithm box is not public: this is group-BSSI,
own reading of its abstract and of its predecessor Grouper (TNSM 17, 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from agents.coflow.base import (
    Allocation,
    CoflowError,
    Number,
    Ranking,
    Stage,
    View,
    ascending,
    largest,
)
from agents.coflow.bssi import KAPPA, bssi


def rank_jobs(stages: Sequence[Stage]) -> list[int]:
    """Job ids by stages in this order; in a stage the job that needs longest alone goes first."""
    return [
        job.id
        for stage in stages
        for job in ascending(stage.jobs, lambda job: -job.alone, lambda job: job.id)
    ]


def by_stages(view: View, ordered: Callable[[View], list[Stage]], name: str) -> Ranking:
    """Coflows in the order of their jobs; those of unknown jobs last."""
    if view.coflows and not view.stages:
        raise CoflowError(f"{name} ranks stages, and was told of none", hint="give the jobs of each stage")
    place = {job: rank for rank, job in enumerate(rank_jobs(ordered(view)))}
    last = len(place)
    ranked = sorted(
        view.coflows,
        key=lambda coflow: (last if coflow.job is None else place.get(coflow.job, last), coflow.id),
    )
    return Ranking.of(coflow.id for coflow in ranked)


@dataclass(frozen=True)
class Beamer:
    """Group-BSSI: stages ranked by all that their jobs still have to send until the stage ends.

    release   a stage announced for later goes last while its release exceeds half the largest load
    ageing_s  a stage that has waited so long weighs twice, twice as long thrice, ...; None = never
    """

    release: bool = False
    ageing_s: float | None = None
    name: ClassVar[str] = "beamer"
    allocation: ClassVar[Allocation] = "greedy"
    reads_loads: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.ageing_s is not None and not self.ageing_s > 0:
            raise CoflowError(f"beamer: ageing_s {self.ageing_s}", hint="more than 0, or none")

    def order(self, view: View) -> Ranking:
        return by_stages(view, self.rank_stages, self.name)

    def rank_stages(self, view: View) -> list[Stage]:
        """All stages of the view, the first to serve first."""
        stages = sorted(view.stages, key=lambda stage: stage.id)
        releases = [max(stage.release - view.now, 0) for stage in stages] if self.release else None
        order = bssi(
            [stage.loads for stage in stages],
            [self._weight(stage, view.now) for stage in stages],
            releases,
            KAPPA,
        )
        return [stages[number] for number in order]

    def _weight(self, stage: Stage, now: Number) -> Number:
        if self.ageing_s is None:
            return stage.weight
        return stage.weight * (1 + max(now - stage.release, 0) / self.ageing_s)


@dataclass(frozen=True)
class StageSrpt:
    """Own baseline: the stage that could end soonest alone goes first; blind to which links collide."""

    name: ClassVar[str] = "stage_srpt"
    allocation: ClassVar[Allocation] = "greedy"
    reads_loads: ClassVar[bool] = False

    def order(self, view: View) -> Ranking:
        return by_stages(view, self.rank_stages, self.name)

    def rank_stages(self, view: View) -> list[Stage]:
        return ascending(view.stages, _alone, lambda stage: stage.id)


def _alone(stage: Stage) -> Number:
    return max(largest(stage.loads), *(job.alone for job in stage.jobs))
