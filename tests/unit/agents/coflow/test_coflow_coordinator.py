"""The coflow coordinator's machine: arrivals, completions, kills, levels; and what a plan puts on links."""

from __future__ import annotations

import random

import pytest

from agents.coflow.base import LEVELS, CoflowError
from agents.coflow.coordinator import CoflowMachine, JobNeeds
from agents.coflow.fifo import FifoLm
from agents.coflow.levels import LevelMap, Place
from agents.coflow.pattern import flows_of, link_loads
from agents.coflow.registry import STAGED, get_ordering, ordering_names
from agents.planning.base import NetworkView
from agents.planning.registry import get_scheduler
from topologies.load import load_topology
from topologies.paths import path_sets


def machine(ordering: str) -> CoflowMachine:
    made = get_ordering(ordering)
    if isinstance(made, FifoLm):
        made = made.with_sizes([100.0])
    return CoflowMachine(made, "both")


def needs(name: str, load: float, iterations: int = 1, compute: float = 0.0, link: int = 0) -> JobNeeds:
    return JobNeeds(name, iterations, {link: load}, load * 100, 2, compute)


def arrive(m: CoflowMachine, now: float, job: str, seq: int = 0) -> LevelMap | None:
    assert m.ready(now, job, 0, seq) is None, "a coflow arrives with its last site"
    return m.ready(now, job, 1, seq)


def complete(m: CoflowMachine, now: float, job: str, seq: int = 0) -> LevelMap | None:
    assert m.done(now, job, 0, seq, 0.25, 2) is None
    return m.done(now, job, 1, seq, 0.5, 3)


def test_beamer_levels_follow_whole_stages_and_the_critical_job_goes_first() -> None:
    # T5: loads 4 and 6.5 -> A before B; Sincronia would begin with the smallest coflow of either.
    m = machine("beamer")
    m.stage(0.0, "A", [needs("a1", 1), needs("a3", 3)])
    fresh = m.stage(0.0, "B", [needs("b2", 2), needs("b4", 4.5)])
    assert fresh is not None and fresh is m.map
    assert fresh.places == {"a3": Place(7, 0), "a1": Place(7, 1), "b4": Place(6, 2), "b2": Place(6, 3)}
    version = fresh.version
    assert arrive(m, 1.0, "a1") is None, "its place is known before it is ready"
    assert m.map.version == version


def test_beamer_changes_its_mind_when_iterations_are_done() -> None:
    # T6: X 14 before Y 18; after two iterations of Y 14 against 12.
    m = machine("beamer")
    m.stage(0.0, "X", [needs("x1", 1, 10), needs("x2", 1, 4)])
    m.stage(0.0, "Y", [needs("y", 3, 6)])
    assert m.map.places["x1"].level == 7 and m.map.places["y"].level == 6
    for seq in range(2):
        arrive(m, seq, "y", seq)
        complete(m, seq + 0.5, "y", seq)
    assert m.map.places["y"].level == 7 and m.map.places["x1"].level == 6


def test_horizon_is_told_what_comes_after_a_stage() -> None:
    m = machine("horizon")
    m.stage(0.0, "A", [needs("a", 1)], {0: 20.0}, 20.0)
    m.stage(0.0, "B", [needs("b", 4)])
    assert m.map.places["b"].level == 7 and m.map.places["a"].level == 6
    alone = machine("horizon")
    alone.stage(0.0, "A", [needs("a", 1)])
    alone.stage(0.0, "B", [needs("b", 4)])
    assert alone.map.places["a"].level == 7


def test_sincronia_ranks_coflows_under_way_by_what_they_have_left() -> None:
    m = machine("sincronia")
    m.stage(0.0, "s", [needs("small", 1), needs("large", 10)])
    assert m.map.places == {}, "nothing is under way"
    first = arrive(m, 1.0, "large")
    assert first is not None and first.places == {"large": Place(7, 0)}
    second = arrive(m, 1.1, "small")
    assert second is not None and second.places == {"small": Place(7, 0), "large": Place(6, 1)}
    # The large one has almost done: less is left of it than of another that comes now.
    m.sent(5.0, "large", 0, 0, 980.0)
    third = complete(m, 5.1, "small")
    assert third is not None and third.places == {"large": Place(7, 0)}
    again = arrive(m, 5.2, "small", 1)
    assert again is not None and again.places == {"large": Place(7, 0), "small": Place(6, 1)}


def test_fifo_lm_lets_the_next_share_once_the_head_is_heavy() -> None:
    m = CoflowMachine(FifoLm(threshold=200.0), "both")
    m.stage(0.0, "s", [needs("a", 10), needs("b", 1), needs("c", 1)])
    for k, job in enumerate("abc"):
        arrive(m, float(k), job)
    assert {job: place.level for job, place in m.map.places.items()} == {"a": 7, "b": 6, "c": 5}
    assert m.sent(3.0, "a", 0, 0, 150.0) is None
    fresh = m.sent(3.1, "a", 1, 0, 60.0)
    both = Place(7, 0, True)
    assert fresh is not None and fresh.places == {"a": both, "b": both, "c": Place(6, 1, True)}


def test_fair_gives_every_job_a_connection_of_its_own_in_the_lowest_class() -> None:
    m = machine("fair")
    fresh = m.stage(0.0, "s", [needs("a", 1), needs("b", 2)])
    assert fresh is not None and set(fresh.places.values()) == {Place(0, 0, True)}
    assert arrive(m, 1.0, "a") is None


def test_coflow_times_count_from_the_last_ready_site_to_the_last_result() -> None:
    m = machine("fair")
    m.stage(0.0, "s", [needs("a", 1, 2)])
    m.ready(1.0, "a", 0, 0)
    m.ready(2.0, "a", 1, 0)
    complete(m, 4.5, "a")
    (coflow,) = m.take_coflows()
    assert (coflow.arrival, coflow.finish, coflow.gate_wait_s, coflow.chunks) == (2.0, 4.5, 0.75, 5)
    assert m.take_coflows() == []


def test_a_site_that_is_ahead_does_not_hide_the_end_of_the_coflow_before() -> None:
    m = machine("sincronia")
    m.stage(0.0, "s", [needs("a", 1, 2)])
    arrive(m, 1.0, "a")
    m.done(2.0, "a", 0, 0)
    assert m.ready(2.1, "a", 0, 1) is None and m.map.places, "the first is still under way"
    m.done(2.2, "a", 1, 0)
    assert m.map.places == {}
    m.ready(2.3, "a", 1, 1)
    assert m.map.places == {"a": Place(7, 0)}
    # The runner ends the job, and begins its next stage, before the last site's word has come.
    m.done(3.0, "a", 0, 1)
    m.job_ended(3.1, "a")
    m.stage(3.2, "t", [needs("a", 1)])
    m.done(3.3, "a", 1, 1)
    assert [(c.seq, c.arrival, c.finish) for c in m.take_coflows()] == [(0, 1.0, 2.2), (1, 2.3, 3.3)]


def test_a_killed_job_frees_its_place_and_its_load_at_once() -> None:
    m = machine("beamer")
    m.stage(0.0, "A", [needs("a", 1)])
    m.stage(0.0, "B", [needs("b1", 1), needs("b2", 5)])
    arrive(m, 1.0, "a")
    fresh = m.job_ended(1.5, "a")
    assert m.stages == ("B",)
    assert fresh is not None and fresh.places == {"b2": Place(7, 0), "b1": Place(7, 1)}
    # What its agents still say of it is nothing to anybody.
    assert m.done(2.0, "a", 0, 0) is None and m.sent(2.0, "a", 0, 0, 9.0) is None and m.job_ended(2.0, "a") is None


def test_compute_time_is_learned_from_the_gaps_between_synchronisations() -> None:
    m = machine("beamer")
    m.stage(0.0, "s", [needs("a", 1, 3)])
    arrive(m, 2.0, "a")
    complete(m, 3.0, "a")
    arrive(m, 7.0, "a", 1)
    (stage,) = m.view(7.0).stages
    assert stage.jobs[0].compute == pytest.approx(0.7 * 2 + 0.3 * 4) and stage.jobs[0].iterations == 1


def test_a_stage_without_jobs_or_with_taken_ones_is_refused_by_name() -> None:
    m = machine("fair")
    with pytest.raises(CoflowError, match="stage rung 3 has no jobs"):
        m.stage(0.0, "rung 3", [])
    with pytest.raises(CoflowError, match="job a is in a stage already"):
        m.stage(0.0, "x", [needs("a", 1), needs("a", 1)])
    m.stage(0.0, "x", [needs("a", 1)])
    with pytest.raises(CoflowError, match="stage x is under way"):
        m.stage(0.0, "x", [needs("b", 1)])
    with pytest.raises(CoflowError, match="job b"):
        JobNeeds("b", 0, {}, 1.0, 1)


def test_levels_never_leave_their_range_and_versions_only_grow() -> None:
    for name in ordering_names():
        rng = random.Random(name)
        m = machine(name)
        now, version, under_way, seqs = 0.0, 0, set(), dict.fromkeys((f"j{k}" for k in range(20)), 0)
        for stage in range(4):
            members = range(5 * stage, 5 * stage + 5)
            jobs = [needs(f"j{k}", rng.uniform(0.1, 5), 50, link=rng.randrange(3)) for k in members]
            m.stage(now, f"s{stage}", jobs)
        for _ in range(300):
            now += rng.random()
            job = rng.choice(sorted(seqs))
            if job in under_way and rng.random() < 0.4:
                m.sent(now, job, 0, seqs[job], rng.uniform(0, 500))
            elif job in under_way:
                complete(m, now, job, seqs[job])
                under_way.discard(job)
                seqs[job] += 1
            else:
                arrive(m, now, job, seqs[job])
                under_way.add(job)
            assert m.map.version >= version
            version = m.map.version
            assert all(0 <= place.level < LEVELS for place in m.map.places.values())
            if name != "fair" and name not in STAGED:
                assert set(m.map.places) == under_way
        assert LevelMap.from_dict(m.map.to_dict()) == m.map


def test_a_map_that_no_coordinator_publishes_is_refused() -> None:
    good = {"version": 1, "enforcement": "both", "places": {"a": [7, 0, False]}}
    assert LevelMap.from_dict(good).places["a"] == Place(7, 0)
    for bad, said in (
        ({**good, "places": {"a": [8, 0, False]}}, "level 8"),
        ({**good, "enforcement": "hope"}, "enforcement 'hope'"),
        ({**good, "places": {"a": [1]}}, "not a map of levels"),
        ({"version": 1}, "not a map of levels"),
    ):
        with pytest.raises(CoflowError, match=said):
            LevelMap.from_dict(bad)


def test_loads_of_a_plan_count_both_directions_of_every_tree() -> None:
    topology = load_topology("triangle")
    view = NetworkView.from_topology(topology)
    star = get_scheduler({"name": "star", "options": {"server": "first"}}, topology.site_names).plan(view)
    flows = flows_of(star, 1000.0, (0, 1, 2))
    assert flows == {(1, 0): 1000.0, (2, 0): 1000.0, (0, 1): 1000.0, (0, 2): 1000.0}
    ring = get_scheduler("ring", topology.site_names).plan(view)
    around = flows_of(ring, 900.0, (0, 1, 2))
    # 2 (W-1)/W of the model on every hop of the ring.
    assert sorted(around.values()) == pytest.approx([1200.0] * 3)
    numbers = {(link.src, link.dst): link.index for link in topology.directed}
    routes = {pair: paths[0] for pair, paths in path_sets(topology).items()}
    rates = {hop: float(bps) for hop, bps in topology.rates().items()}
    loads = link_loads(flows, routes, numbers, rates)
    assert loads[numbers[1, 0]] == pytest.approx(1000 * 8 / 100e6) and len(loads) == 4


def test_a_scheduler_that_decides_per_transfer_has_no_loads_to_order_by() -> None:
    topology = load_topology("triangle")
    plan = get_scheduler("tsengine", topology.site_names).plan(NetworkView.from_topology(topology))
    with pytest.raises(CoflowError, match="decides per transfer"):
        flows_of(plan, 1.0, (0, 1, 2))
