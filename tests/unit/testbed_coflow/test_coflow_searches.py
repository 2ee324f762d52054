"""Searches in stages, simulated."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.coflow.base import CoflowError, Ranking, Stage, View
from agents.coflow.beamer import Beamer, rank_jobs
from agents.coflow.bssi import bssi, prefix_loads
from agents.coflow.fabric import Fabric, Flow
from agents.coflow.registry import ordering_names
from testbed.coflow.bounds import open_shop_optimum, stage_bound
from testbed.coflow.demand import Demand
from testbed.coflow.searches import Searches, SearchSpec, run_searches
from testbed.coflow.simulator import Simulation

SMALL = SearchSpec(tuners=3, hosts=6, workers=3, trials=4, rungs=3, iterations=2)


@pytest.mark.parametrize("policy", ordering_names())
@pytest.mark.parametrize("pattern", ["ring", "ps"])
def test_every_stage_ends_and_takes_at_least_what_its_jobs_need(policy: str, pattern: Any) -> None:
    spec = SearchSpec(**{**vars(SMALL), "pattern": pattern})
    result = run_searches(spec, 3, policy)
    assert sorted((stage.tuner, stage.rung) for stage in result.stages) == [
        (tuner, rung) for tuner in range(3) for rung in range(3)
    ]
    trials = Searches(spec, 3).trials
    for stage in result.stages:
        alone = max(
            spec.iterations * 2**stage.rung * (trial.compute + max(trial.loads.values()))
            for trial in trials[stage.tuner][: 4 >> stage.rung]
        )
        assert stage.sct >= alone * (1 - 1e-9)
    for tuner in range(3):
        own = sorted((s for s in result.stages if s.tuner == tuner), key=lambda stage: stage.rung)
        assert [stage.release for stage in own] == [0.0, own[0].finish, own[1].finish]


def test_a_seed_is_a_result() -> None:
    assert run_searches(SMALL, 5, "beamer") == run_searches(SMALL, 5, "beamer")
    assert run_searches(SMALL, 5, "beamer") != run_searches(SMALL, 6, "beamer")


def test_bytes_of_a_synchronisation() -> None:
    ring = Searches(SearchSpec(sizes_mb=(40,)), 1).trials[0][0]
    assert ring.demand.size.tolist() == [60e6] * 4
    assert ring.compute == pytest.approx(0.2 * 0.48)
    server = Searches(SearchSpec(sizes_mb=(40,), pattern="ps"), 1).trials[0][0]
    assert server.demand.size.tolist() == [40e6] * 8
    assert max(server.loads.values()) == pytest.approx(4 * 0.32)


def test_trials_of_one_tuner_can_share_a_model() -> None:
    for own in Searches(SearchSpec(one_model=True), 1).trials:
        assert len({trial.demand.bytes for trial in own}) == 1
    assert any(len({trial.demand.bytes for trial in own}) > 1 for own in Searches(SearchSpec(), 1).trials)


class Kept:
    """Beamer's first ranking of the stages, for good."""

    name = "beamer"
    allocation = "greedy"
    reads_loads = True

    def __init__(self) -> None:
        self.stages: list[Stage] = []
        self.place: dict[int, int] = {}

    def order(self, view: View) -> Ranking:
        if not self.place:
            self.stages = Beamer().rank_stages(view)
            self.place = {job: rank for rank, job in enumerate(rank_jobs(self.stages))}
        ranked = sorted(view.coflows, key=lambda coflow: self.place[coflow.job or 0])
        return Ranking.of(coflow.id for coflow in ranked)


@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from(["ring", "ps"]),
    st.sampled_from([0.0, 0.2, 1.0]),
    st.sampled_from([(10,), (10, 20, 160), (1, 3, 7)]),
)
def test_stages_end_within_computing_and_twice_the_prefix_load(
    seed: int, pattern: Any, ratio: float, sizes: tuple[float, ...]
) -> None:
    spec = SearchSpec(4, 6, 3, 3, 2, 1, 3, sizes, ratio, pattern)
    searches = Searches(spec, seed)
    loads, computes = [], []
    for own in searches.trials:
        loads.append(
            {
                link: sum(3 * trial.loads.get(link, 0.0) for trial in own)
                for link in {link for trial in own for link in trial.loads}
            }
        )
        computes.append(max(3 * trial.compute for trial in own))
    kept = Kept()
    Simulation(searches.fabric, kept, searches).run()
    # The first ranking sees what computes nothing already sending, which its loads count all the same.
    order = [stage.id for stage in kept.stages]
    assert order == bssi(loads)
    value = prefix_loads(order, loads)
    ends = {stage.tuner: stage.finish for stage in searches.stage_times}
    for number, end in ends.items():
        assert end <= (computes[number] + 2 * value[number]) * (1 + 1e-6)
    total = sum(ends.values())
    assert stage_bound(computes, loads) <= total * (1 + 1e-9)
    assert total <= (5 if ratio else 4) * stage_bound(computes, loads)
    again = run_searches(spec, seed, "beamer")
    assert sum(stage.sct for stage in again.stages) <= 5 * stage_bound(computes, loads)


class Travelling:
    """Three stages of 100 s that take ports 0, 1, 2 one after the other, and a job that visits all three."""

    def __init__(self) -> None:
        self.end = 0.0

    def start(self, simulation: Simulation) -> None:
        for port in range(3):
            simulation.at(100.0 * port, lambda port=port: self._send(simulation, port, 100, port))  # type: ignore[misc]
        simulation.at(0.0, lambda: self._send(simulation, 0, 1, 3))

    def _send(self, simulation: Simulation, port: int, size: int, job: int) -> None:
        simulation.submit(Demand.of([Flow(port, port, size)]), job=job)

    def finished(self, simulation: Simulation, number: int) -> None:
        if simulation.done[number].job == 3:
            self.end = simulation.now
            port = sum(done.job == 3 for done in simulation.done.values())
            if port < 3:
                self._send(simulation, port, 1, 3)

    def stages(self, simulation: Simulation) -> tuple[Stage, ...]:
        return ()


class ByJob:
    name = "by_job"
    allocation = "greedy"
    reads_loads = False

    def order(self, view: View) -> Ranking:
        return Ranking.of(c.id for c in sorted(view.coflows, key=lambda c: (c.job, c.id)))


def test_without_a_stable_critical_pair_twice_the_prefix_load_does_not_hold() -> None:
    workload = Travelling()
    Simulation(Fabric.switch(3, 1.0), ByJob(), workload).run()
    # Nothing computes; the job's load counts as three units on whichever port, after 100 of a stage.
    prefix = 100 + 3
    assert workload.end == pytest.approx(301)
    assert workload.end > 2 * prefix


def test_bounds_by_hand() -> None:
    assert open_shop_optimum([{0: 4, 1: 1, 2: 4, 3: 1}, {0: 3, 1: 2, 3: 5}, {1: 2, 2: 2}]) == 14
    assert open_shop_optimum([]) == 0
    assert stage_bound([10, 0], [{0: 1}, {0: 2}]) == 12
    assert stage_bound([0, 0], [{0: 1}, {0: 2}]) == 4
    with pytest.raises(CoflowError, match="17 coflows takes too long"):
        open_shop_optimum([{0: 1}] * 17)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"pattern": "star"}, "a pattern 'star'"),
        ({"trials": 3}, "3 trials leave none for rung 4"),
        ({"workers": 9}, "9 workers do not fit on 8 hosts"),
        ({"workers": 8, "pattern": "ps"}, "8 workers do not fit"),
        ({"tuners": 0}, "without tuners"),
        ({"sizes_mb": (10, 0)}, "models need bytes"),
    ],
)
def test_searches_that_cannot_be(change: dict[str, Any], says: str) -> None:
    with pytest.raises(CoflowError, match=says):
        SearchSpec(**change)
