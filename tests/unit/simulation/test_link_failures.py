"""Links that fail and return while a simulated job trains: who hears of it when, and what is planned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agents.options import AuxiliaryOptions, AwarenessOptions
from agents.planning.base import Plan
from agents.planning.registry import get_scheduler
from agents.sync.spec import allreduce
from controller.reroute import DOWN_AFTER_S, UP_AFTER_S
from testbed.experiments.spec import experiment_from_text
from testbed.report.measurements import read_run
from testbed.simulation.clock import SECOND
from testbed.simulation.run import run_experiment
from testbed.simulation.world import REALISTIC, World, WorldOptions
from tests.five_sites import CUT, hops_of_plan, simulated_plans
from tests.unit.simulation.conftest import Build

MS = 1_000_000
RATES = {(0, 1): 100, (1, 2): 100, (0, 2): 80}
CONTROL_NS = 300_000
FAILS_NS, RETURNS_NS = 1 * SECOND, 4 * SECOND
HEARD_NS = FAILS_NS + round(DOWN_AFTER_S * SECOND) + CONTROL_NS
HEARD_AGAIN_NS = RETURNS_NS + round(UP_AFTER_S * SECOND) + CONTROL_NS


class Job:
    """All-reduces one after the other over a triangle whose link dc1-dc2 is down from 1 s to 4 s."""

    def __init__(
        self,
        topology_of: Build,
        awareness: Any = "off",
        auxiliary: Any = "off",
        failures: Any = "replan",
        scheduler: Any = "netstorm",
        options: WorldOptions = REALISTIC,
        **more: Any,
    ) -> None:
        topology = topology_of(RATES, "10ms")
        self.world = World(topology, options=options, whole=True, **more)
        self.measuring = self.world.measure()
        self.plans: list[tuple[int, str, Plan]] = []
        self.times: list[tuple[float, float]] = []
        self.measuring.begin(
            AwarenessOptions.model_validate(awareness),
            AuxiliaryOptions.model_validate(auxiliary),
            get_scheduler(scheduler, topology.site_names).plan,
            self._use,
            failures,
        )
        cable = [link.index for link in topology.directed if {link.src, link.dst} == {0, 1}]
        for time_ns, down in ((FAILS_NS, True), (RETURNS_NS, False)):
            change = dict.fromkeys(cable, down)
            self.world.clock.at(time_ns, lambda change=change: self.world.cut(change, {}))  # type: ignore[misc]

    def _use(self, plan: Plan, why: dict[str, Any]) -> None:
        self.plans.append((self.world.clock.now_ns, why["reason"], plan))
        self.world.use_plan(plan, 25_000, why)

    def run(self, seconds: float, elements: int = 500_000) -> None:
        while self.world.clock.now_ns < seconds * SECOND:
            began_ns, seq = self.world.clock.now_ns, -1
            for site in range(3):
                seq = self.world.begin(site, allreduce(elements))
            record = self.world.run_until_complete(seq)
            assert record.delivered == [elements] * 3  # with every chunk, that each site is in it once, is checked
            self.times.append((began_ns / SECOND, record.synchronisation_s))

    def carried(self) -> dict[tuple[int, int], float]:
        self.world.network.settle()
        bits = self.world.network.carried_bits
        return {(link.src, link.dst): bits[link.index] for link in self.world.topology.directed}


def hops(plan: Plan) -> set[tuple[int, int]]:
    return {(v, p) for tree in plan.trees for v, p in enumerate(tree.parents) if p is not None} | {
        (p, v) for tree in plan.trees for v, p in enumerate(tree.down_parents) if p is not None
    }


def test_the_coordinator_hears_after_detection_and_telling_and_plans_around_the_link(topology_of: Build) -> None:
    """50 ms until the controller takes the cable for cut, 500 ms for whole, and 0.3 ms to the coordinator."""
    job = Job(topology_of)
    job.run(6)
    assert [why for _, why, _ in job.plans] == ["start", "links", "links"]
    (_, _, first), (heard_ns, _, without), (again_ns, _, last) = job.plans
    assert heard_ns == pytest.approx(HEARD_NS, abs=2000)
    assert again_ns == pytest.approx(HEARD_AGAIN_NS, abs=2000)
    assert {(0, 1), (1, 0)} <= hops(first)
    assert not {(0, 1), (1, 0)} & hops(without)
    assert last.trees == first.trees
    # And they are the job's policies, each from the first collective on that had not begun when it was planned.
    entries = job.world.policies
    assert [entry["reason"] for entry in entries] == ["start", "links", "links"]
    begun = [sum(began * SECOND < at_ns for began, _ in job.times) for at_ns, _, _ in job.plans]
    assert [entry["from_seq"] for entry in entries] == begun
    assert all(entry["issued_ns"] >= at_ns for entry, (at_ns, _, _) in zip(entries, job.plans, strict=True))
    assert [entry["version"] for entry in entries] == [1, 2, 3]
    assert all(entry["gain_ratio"] > 0.1 for entry in entries[1:]), "over detours the old plan would be slower"


def test_a_link_cut_in_the_middle_of_a_collective_moves_its_traffic_and_the_sum_is_whole(topology_of: Build) -> None:
    """One all-reduce of four seconds: what is left of it goes around, over dc3."""
    job = Job(topology_of)
    job.run(1, elements=10_000_000)
    ((began_s, took_s),) = job.times
    assert began_s == 0 and took_s > 3
    world = job.world
    assert world.coordinator.next_seq == 1 and world.policies[0]["reason"] == "start"
    assert world.lanes.rerouting is not None and world.lanes.rerouting.reroutes >= 1
    untouched = Job(topology_of)
    untouched.world.cut = lambda down, blackhole: None  # type: ignore[method-assign]
    untouched.run(1, elements=10_000_000)
    before, after = untouched.carried(), job.carried()
    for hop, around in (((0, 1), (0, 2)), ((1, 0), (1, 2))):
        assert after[hop] < 0.5 * before[hop]
        assert after[around] > before[around] + 0.4 * (before[hop] - after[hop])


def test_a_plan_without_the_link_beats_the_old_one_over_detours(topology_of: Build) -> None:
    means = {}
    for failures in ("replan", "keep"):
        job = Job(topology_of, failures=failures)
        job.run(4)
        means[failures] = [took for began, took in job.times if began > 2]
        assert [why for _, why, _ in job.plans] == (["start", "links"] if failures == "replan" else ["start"])
    assert max(means["replan"]) < 0.9 * min(means["keep"]), means


def test_the_sites_hear_from_the_coordinator_and_count_their_queues_where_paths_now_begin(topology_of: Build) -> None:
    job = Job(topology_of, options=WorldOptions(control_delay_ns=5 * MS))
    world, lanes = job.world, job.world.lanes
    for _ in range(100):
        lanes.send(world.lane(0, 1, 0), 1_000_000, lambda: None)
    # 50 ms, and 5 ms each from the controller to the coordinator and from there to the site.
    counts = []
    for ms in (1059, 1061, 4509, 4511):
        world.clock.at(ms * MS, lambda: counts.append((lanes.waiting(0, 1), lanes.waiting(0, 2))))
    world.clock.run(limit_ns=4512 * MS)
    assert [(direct > 0, around > 0) for direct, around in counts] == [
        (True, False),
        (False, True),
        (False, True),
        (True, False),
    ]


def test_a_coordinator_at_a_site_is_told_and_tells_over_its_own_distance(topology_of: Build) -> None:
    """dc1 is the coordinator's: dc3 has 10 ms to it, so it hears 10 ms later than dc1."""
    job = Job(topology_of, coordinator="dc1")
    heard: dict[int, int] = {}
    for site, network in enumerate(job.measuring.sites):
        network.links_changed = lambda down, site=site: heard.setdefault(site, job.world.clock.now_ns)  # type: ignore[method-assign, misc]
    job.run(2)
    assert heard[0] == pytest.approx(HEARD_NS + CONTROL_NS, abs=2000)
    assert heard[2] == pytest.approx(HEARD_NS + CONTROL_NS + 10 * MS, abs=2000)


def test_what_was_measured_on_the_link_is_forgotten_and_no_report_brings_it_back(topology_of: Build) -> None:
    job = Job(topology_of, {"estimator": "unbiased", "check_period_s": 1000, "probe_idle_s": 0})
    job.run(0.5)
    # Everything that is measured takes its own way: estimates of both directions.
    replanner = job.measuring._segment.replanner  # type: ignore[union-attr]
    assert {(0, 1), (1, 0)} <= set(replanner.matrix.estimates)
    job.run(3)
    rates = replanner.rates(job.world.clock.now_ns / SECOND)
    assert rates[0, 1] == rates[1, 0] == 0
    assert replanner.status(3.0)["links_down"] == ["dc1-dc2"]
    assert not {"dc1>dc2", "dc2>dc1"} & set(replanner.status(3.0)["measured"])
    job.run(6)
    network = job.measuring.end()
    assert network["links_down"] == []
    assert {"dc1>dc2", "dc2>dc1"} <= set(network["measured"]), "measured again, since it is used again"


def test_no_detour_is_taken_over_a_link_that_is_down(topology_of: Build) -> None:
    job = Job(topology_of, auxiliary="random", scheduler="star")
    over = {number for number, path in enumerate(job.world.declared.paths[2, 0]) if path == (2, 1, 0)}
    assert over, "dc3 has a way to dc1 over dc2"
    site = job.measuring.sites[2]
    job.world.clock.run(limit_ns=2 * SECOND)
    assert not {site.choose(0, 0) for _ in range(50)} & over
    job.world.clock.run(limit_ns=5 * SECOND)
    assert {site.choose(0, 0) for _ in range(50)} & over


def test_sites_that_are_parted_keep_their_plan(topology_of: Build) -> None:
    """A pair: no plan is left without its link, and what is sent waits for it."""
    world = World(topology_of({(0, 1): 100}, "10ms"), options=REALISTIC, whole=True)
    measuring = world.measure()
    used: list[str] = []

    def use(plan: Plan, why: dict[str, Any]) -> None:
        used.append(why["reason"])
        world.use_plan(plan, 25_000, why)

    planner = get_scheduler("netstorm", world.topology.site_names)
    measuring.begin(AwarenessOptions(), AuxiliaryOptions(), planner.plan, use)
    world.clock.at(SECOND, lambda: world.cut({0: True, 1: True}, {}))
    world.clock.at(3 * SECOND, lambda: world.cut({0: False, 1: False}, {}))
    while world.clock.now_ns < 6 * SECOND:
        seq = -1
        for site in range(2):
            seq = world.begin(site, allreduce(500_000))
        assert world.run_until_complete(seq).delivered == [500_000] * 2
    assert used == ["start"]


def test_a_link_that_is_down_when_measuring_begins_is_known(topology_of: Build) -> None:
    world = World(topology_of(RATES, "10ms"), options=REALISTIC, whole=True)
    cable = [link.index for link in world.topology.directed if {link.src, link.dst} == {0, 1}]
    world.cut(dict.fromkeys(cable, True), {})
    world.clock.run()
    planner = get_scheduler("netstorm", world.topology.site_names)
    plan = world.measure().begin(AwarenessOptions(), AuxiliaryOptions(), planner.plan, lambda plan, why: None)
    assert not {(0, 1), (1, 0)} & hops(plan)


EXPERIMENT = """
name: failing
topology: netstorm-9
seed: 4
scale: 0.5
timeline: [{{at: 2s, action: link-down, link: dc1-dc2, for: 3s}}]
training: {{model: tensor-500k, iterations: 16, chunk_elements: 25000}}
schedulers: [{{name: netstorm, awareness: {awareness}, policy: {policy}}}]
"""


def followed(path: Path, awareness: str = "off", policy: str = "barrier") -> dict[str, Any]:
    """A run's one `network-followed` event."""
    run_experiment(experiment_from_text(EXPERIMENT.format(awareness=awareness, policy=policy)), path)
    events = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
    (event,) = (event for event in events if event["kind"] == "network-followed")
    return dict(event)


@pytest.mark.parametrize(
    ("awareness", "policy", "reasons"),
    [
        ("off", "barrier", ["start", "links", "links"]),
        ("off", "announced", ["start", "links", "links"]),
        ("off", "{failures: keep}", ["start"]),
        ("{estimator: unbiased, check_period_s: 1000, probe_idle_s: 0}", "barrier", ["start", "links", "links"]),
    ],
)
def test_an_experiment_plans_anew_and_its_run_tells(
    tmp_path: Path, awareness: str, policy: str, reasons: list[str]
) -> None:
    event = followed(tmp_path / "run", awareness, policy)
    assert [entry["reason"] for entry in event["policies"]] == reasons
    assert event["network"]["replans"] == len(reasons) - 1
    assert event["network"]["links_down"] == []
    (iterations,) = read_run(tmp_path / "run").iterations.values()
    assert len(iterations) == 16


def test_a_turn_that_ends_with_a_cable_cut_leaves_nothing_of_it_to_the_next(tmp_path: Path) -> None:
    """The same scheduler twice: the same plans at the same times after their start, and the same synchronisations."""
    text = EXPERIMENT.format(awareness="off", policy="barrier").replace(", for: 3s", "")
    text = text.replace("schedulers: [", "schedulers: [{name: netstorm, label: first}, ")
    experiment = experiment_from_text(text)
    run_experiment(experiment, tmp_path / "run")
    run = read_run(tmp_path / "run")
    first, second = (run.iterations[label] for label in ("first", "netstorm"))
    times = [[i.synchronisation_s for i in turn] for turn in (first, second)]
    assert times[1] == [pytest.approx(seconds, rel=1e-6) for seconds in times[0]]
    plans = [segment.plan for segment in run.manifest.segments]
    assert plans[0] == plans[1]
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    turns = [event["policies"] for event in events if event["kind"] == "network-followed"]
    assert [[entry["reason"] for entry in policies] for policies in turns] == [["start", "links"]] * 2
    began = [segment.started_ns or 0 for segment in run.manifest.segments]
    assert turns[0][1]["issued_ns"] - began[0] == pytest.approx(turns[1][1]["issued_ns"] - began[1], abs=1000)


def test_a_run_with_cuts_repeats_to_the_last_digit(tmp_path: Path) -> None:
    events, traces = [], []
    for name in ("a", "b"):
        event = followed(tmp_path / name, "{estimator: unbiased, check_period_s: 0.5}")
        events.append({key: event[key] for key in ("policies", "network")})
        traces.append((tmp_path / name / "workers" / "dc1-0" / "trace.jsonl").read_text())
    assert events[0] == events[1]
    assert traces[0] == traces[1]
    assert {"start", "links"} <= {entry["reason"] for entry in events[0]["policies"]}


def test_both_worlds_avoid_the_same_link() -> None:
    """The simulated half: tests/emulated/test_policies.py compares the emulated world's plans with these."""
    for awareness in ("off", {"estimator": "unbiased", "check_period_s": 1000, "probe_idle_s": 0}):
        (start, first), (fails, without), (returns, _) = simulated_plans(awareness)
        assert (start, fails, returns) == ("start", "links", "links")
        assert {CUT, CUT[::-1]} & hops_of_plan(first)
        assert not {CUT, CUT[::-1]} & hops_of_plan(without)
    plans = [plan for _, plan in simulated_plans()]
    assert plans[2] == plans[0]
