"""Searches in stages, simulated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.coflow.base import CoflowError, Job, Ranking, Stage, View
from agents.coflow.beamer import Beamer, rank_jobs
from agents.coflow.bssi import bssi, prefix_loads
from agents.coflow.fabric import Fabric, Flow
from agents.coflow.registry import get_ordering, ordering_names
from agents.search.base import Rung
from testbed.coflow.bounds import open_shop_optimum, stage_bound
from testbed.coflow.demand import Demand
from testbed.coflow.jobs import synchronisation
from testbed.coflow.search_workload import expected
from testbed.coflow.searches import SearchSpec, make_workload, run_searches
from testbed.coflow.simulator import Simulation
from topologies.errors import StormbedError

SMALL = SearchSpec(tuners=3, hosts=6, workers=3, options={"trials": 4, "rungs": 3, "iterations": 2})


@pytest.mark.parametrize("policy", ordering_names())
@pytest.mark.parametrize("pattern", ["ring", "ps"])
def test_every_stage_ends_and_takes_at_least_what_its_jobs_need(policy: str, pattern: Any) -> None:
    result = run_searches(replace(SMALL, pattern=pattern), 3, policy)
    assert sorted((stage.search, stage.rung, stage.jobs) for stage in result.stages) == [
        (tuner, rung, 4 >> rung) for tuner in range(3) for rung in range(3)
    ]
    jobs = {(job.search, job.stage, job.trial): job for job in result.jobs}
    assert len(jobs) == len(result.jobs) == 3 * 7
    for stage in result.stages:
        own = [job for job in result.jobs if (job.search, job.stage) == (stage.search, stage.stage)]
        assert stage.alone >= max(job.alone for job in own)
        assert stage.sct >= stage.alone * (1 - 1e-9)
        assert all(job.jct >= job.alone * (1 - 1e-9) for job in own)
        assert stage.finish == max(job.finish for job in own)
    for tuner in range(3):
        ranked = sorted((s for s in result.stages if s.search == tuner), key=lambda stage: stage.rung)
        assert [stage.release for stage in ranked] == [0.0, ranked[0].finish, ranked[1].finish]
    assert result.bound_ratio >= 1
    assert 0 < result.mean_link_ratio <= result.busiest_link_ratio <= 1
    assert result.makespan_s == max(stage.finish for stage in result.stages)
    if policy == "fair":
        assert result.mean_wait_s == 0
    else:
        assert 0 < result.mean_wait_s < result.mean_cct_s


@pytest.mark.parametrize(
    ("tuner", "options", "stages"),
    [
        ("hyperband", {"max_iterations": 9}, 2 * 6),
        ("pbt", {"trials": 4, "intervals": 3, "iterations": 2}, 2 * 3),
        ("random", {"trials": 5, "wave": 2, "iterations": 2}, 2 * 3),
        ("asha", {"trials": 6, "slots": 2, "eta": 2, "rungs": 2}, None),
    ],
)
def test_every_kind_of_search_runs(tuner: str, options: dict[str, Any], stages: int | None) -> None:
    spec = replace(SMALL, tuners=2, tuner=tuner, options=options)
    result = run_searches(spec, 1, "beamer")
    assert stages is None or len(result.stages) == stages
    assert {stage.barrier for stage in result.stages} == {tuner != "asha"}
    assert all(stage.jobs == 1 for stage in result.stages) == (tuner == "asha")


def test_survivors_go_on_from_where_they_were() -> None:
    spec = replace(SMALL, tuners=1, options={"trials": 2, "rungs": 2, "iterations": 3})
    going_on, again = (
        run_searches(replace(spec, options={**spec.options, "resume": resume}), 1, "fair") for resume in (True, False)
    )
    # 3 iterations more to the boundary at 6, or 6 from scratch; a lone job takes what it needs alone.
    assert again.stages[1].sct == pytest.approx(2 * going_on.stages[1].sct)
    assert going_on.stages[1].sct == pytest.approx(going_on.stages[1].alone)


def test_a_seed_is_a_result() -> None:
    assert run_searches(SMALL, 5, "beamer") == run_searches(SMALL, 5, "beamer")
    assert run_searches(SMALL, 5, "beamer") != run_searches(SMALL, 6, "beamer")


def test_later_rungs_are_expected_like_the_present_jobs() -> None:
    jobs = [Job(0, 10, 1.0, {0: 2.0}), Job(1, 10, 0.0, {0: 4.0, 1: 1.0})]
    ahead, alone = expected(jobs, [Rung(0, 1, 2, 10, 15), Rung(0, 2, 1, 15, 35)])
    # 2 x 5 + 1 x 20 iterations of 3 s on link 0 and half a second on link 1.
    assert ahead == {0: 90, 1: 15}
    # Two jobs: as long as the longer, 4 s an iteration; one job: as the mean, 3.5 s.
    assert alone == 5 * 4 + 20 * 3.5
    assert expected(jobs, []) == ({0: 0, 1: 0}, 0)


def test_bytes_of_a_synchronisation() -> None:
    (ring, *_), *_ = make_workload(SearchSpec(sizes_mb=(40,)), 1).first_jobs()
    assert ring[1].demand.size.tolist() == [60e6] * 4
    assert ring[1].compute == pytest.approx(0.2 * 0.48)
    workload = make_workload(SearchSpec(sizes_mb=(40,), pattern="ps"), 1)
    server = workload.first_jobs()[0][0][1].demand
    assert server.size.tolist() == [40e6] * 8
    assert max(server.loads(workload.fabric).values()) == pytest.approx(4 * 0.32)
    # A worker at the server's own place sends nothing.
    assert synchronisation("ps", [0, 1], 5, 0) == [Flow(1, 0, 5), Flow(0, 1, 5)]


def test_trials_of_one_tuner_can_share_a_model() -> None:
    def sizes(spec: SearchSpec) -> list[set[float]]:
        return [{work.demand.bytes for _, work in stage} for stage in make_workload(spec, 1).first_jobs()]

    assert all(len(own) == 1 for own in sizes(SearchSpec(one_model=True)))
    assert any(len(own) > 1 for own in sizes(SearchSpec()))


def test_a_coflow_waits_while_nothing_of_it_is_sent() -> None:
    # On one port: 2 s and then 3 s. The second waits for 2 s under any order, under fair sharing for none.
    for policy, waited in (("fifo", [0, 2]), ("fair", [0, 0]), ("varys", [0, 2])):
        workload = Listed([Flow(0, 0, 2)], [Flow(0, 0, 3)])
        simulation = Simulation(Fabric.switch(1, 1.0), get_ordering(policy), workload)
        simulation.run()
        assert [simulation.done[k].waited for k in (0, 1)] == pytest.approx(waited)
        assert simulation.utilisation() == pytest.approx({0: 1, 1: 1})


class Listed:
    """Coflows at 0."""

    def __init__(self, *coflows: list[Flow]) -> None:
        self.coflows = coflows

    def start(self, simulation: Simulation) -> None:
        for flows in self.coflows:
            simulation.submit(Demand.of(flows))

    def finished(self, simulation: Simulation, number: int) -> None:
        pass

    def stages(self, simulation: Simulation) -> tuple[Stage, ...]:
        return ()


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
    options = {"trials": 3, "rungs": 1, "iterations": 3}
    spec = SearchSpec(4, 6, 3, options=options, sizes_mb=sizes, compute_ratio=ratio, pattern=pattern)
    searches = make_workload(spec, seed)
    loads, computes = [], []
    for own in searches.first_jobs():
        needs = [work.demand.loads(searches.fabric) for _, work in own]
        loads.append(
            {link: sum(3 * need.get(link, 0.0) for need in needs) for link in {k for need in needs for k in need}}
        )
        computes.append(max(3 * work.compute for _, work in own))
    kept = Kept()
    Simulation(searches.fabric, kept, searches).run()
    # The first ranking sees what computes nothing already sending, which its loads count all the same.
    order = [stage.id for stage in kept.stages]
    assert order == bssi(loads)
    value = prefix_loads(order, loads)
    ends = {stage.search: stage.finish for stage in searches.stage_times}
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
        ({"options": {"trials": 3}}, "3 trials leave none for rung 4"),
        ({"workers": 9}, "9 workers do not fit on 8 hosts"),
        ({"workers": 8, "pattern": "ps"}, "8 workers do not fit"),
        ({"tuners": 0}, "0 tuners of 4 workers"),
        ({"sizes_mb": (10, 0)}, "models need bytes"),
        ({"tuner": "halfing"}, "unknown tuner 'halfing' .did you mean halving"),
    ],
)
def test_searches_that_cannot_be(change: dict[str, Any], says: str) -> None:
    with pytest.raises(StormbedError, match=says) as error:
        SearchSpec(**change)
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: synchronisation("ring", [3], 5), "workers at .3."),
        (lambda: synchronisation("ps", [3, 3], 5, 0), "workers at .3, 3."),
        (lambda: synchronisation("ps", [3, 4], 5), "a parameter server needs a place"),
        (lambda: synchronisation("star", [3, 4], 5), "a pattern 'star'"),
    ],
)
def test_synchronisations_that_cannot_be(make: Any, says: str) -> None:
    with pytest.raises(CoflowError, match=says):
        make()
