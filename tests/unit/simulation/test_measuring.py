"""Measuring links, planning anew and taking detours in the simulated world, with the agents' own objects."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agents.options import AuxiliaryOptions, AwarenessOptions
from agents.planning.registry import get_scheduler
from agents.sync.spec import allreduce
from testbed.experiments.spec import experiment_from_text, open_experiment
from testbed.report.measurements import read_run
from testbed.simulation.clock import SECOND, VirtualClock
from testbed.simulation.measuring import VirtualTimers
from testbed.simulation.run import run_experiment
from testbed.simulation.world import REALISTIC, World
from tests.unit.simulation.conftest import Build

CHUNK = 25_000  # elements: 100 kB, the size that the published estimator is told to time
ESTIMATORS: tuple[dict[str, Any], ...] = (
    {"estimator": "published", "min_message_bytes": 4 * CHUNK},
    {"estimator": "unbiased"},
)


class Training:
    """All-reduces one after the other, as long as virtual time is below a limit."""

    def __init__(self, world: World, scheduler: Any, awareness: Any, auxiliary: Any = "off") -> None:
        self.world = world
        self.measuring = world.measure()
        self.first = self.measuring.begin(
            AwarenessOptions.model_validate(awareness),
            AuxiliaryOptions.model_validate(auxiliary),
            get_scheduler(scheduler, world.topology.site_names).plan,
            lambda plan, why: world.use_plan(plan, CHUNK, why),
        )
        self.times: list[float] = []

    def run(self, seconds: float, elements: int = 500_000) -> None:
        while self.world.clock.now_ns < seconds * SECOND:
            seq = -1
            for site in range(self.world.n):
                seq = self.world.begin(site, allreduce(elements))
            self.times.append(self.world.run_until_complete(seq).synchronisation_s)


def step(world: World, arc: tuple[int, int], at_s: float, mbps: float) -> None:
    """A link has another rate from then on, in both directions."""
    for link in world.topology.directed:
        if (link.src, link.dst) in (arc, arc[::-1]):
            index = link.index
            world.clock.at(
                round(at_s * SECOND),
                lambda index=index: world.network.set_rate(index, mbps * 1e6),  # type: ignore[misc]
            )


@pytest.mark.parametrize("options", ESTIMATORS, ids=lambda options: options["estimator"])
def test_every_used_link_is_measured(topology_of: Build, options: dict[str, Any]) -> None:
    """Rates that differ by direction, no other traffic: payload gets 94 % of them, less headers.

    One way includes 1 ms of delay on top of at least 16 ms; what waits behind another chunk does not.
    """
    rates = {(0, 1): 40, (1, 0): 20, (1, 2): 30, (2, 1): 60, (0, 2): 25, (2, 0): 50}
    world = World(topology_of(rates, "1ms"), options=REALISTIC, whole=True)
    # Nothing is planned anew, so that the links of the star stay in use.
    star = Training(world, "star-first", {**options, "check_period_s": 1000, "probe_idle_s": 0})
    star.run(4)
    found = star.measuring.end()["measured"]
    shares = {name: entry["rate_bps"] / (0.94e6 * _rate(rates, name)) for name, entry in found.items()}
    assert set(shares) == {"dc1>dc2", "dc2>dc1", "dc1>dc3", "dc3>dc1"}
    assert all(0.92 < share <= 1.0 for share in shares.values()), shares
    if options["estimator"] == "unbiased":
        assert shares["dc2>dc1"] > 0.99  # the bottleneck, where chunks queue


def _rate(rates: dict[tuple[int, int], float], name: str) -> float:
    u, v = (int(site[2:]) - 1 for site in name.split(">"))
    return rates[u, v]


@pytest.mark.parametrize("options", ESTIMATORS, ids=lambda options: options["estimator"])
def test_a_bandwidth_step_leads_to_a_new_plan_in_time(topology_of: Build, options: dict[str, Any]) -> None:
    """Property (d): a plan around the slow link holds within NUM_MSG_REPORT messages over it, CHECK_PERIOD and

    one iteration.
    """
    world = World(topology_of({(0, 1): 100, (1, 2): 100, (0, 2): 80}), options=REALISTIC, whole=True)
    before = Training(world, "netstorm", {**options, "check_period_s": 1.0, "probe_idle_s": 0})
    step(world, (0, 1), 3.0, 8)
    before.run(8.0)
    usual = before.times[0]
    window = AwarenessOptions().window
    # A message has to get through at the new rate, a full window of them; reports go out four times a second.
    messages_s = (window + 1) * 8 * 4 * CHUNK / (0.94 * 8e6)
    report_s = AwarenessOptions().report_every_s
    slow = max(before.times)
    late_s = messages_s + report_s + 1.0 + slow
    issued = [p["monotonic_ns"] / SECOND for p in world.policies if p["monotonic_ns"] > 3 * SECOND]
    assert issued and issued[0] <= 3.0 + late_s, (issued, late_s)
    assert world.coordinator.policy is not None
    hops = {(v, p) for tree in world.coordinator.policy.plan.trees for v, p in enumerate(tree.parents)}
    assert not {(0, 1), (1, 0)} & hops
    assert usual < before.times[-1] < 0.5 * slow


def test_hysteresis_holds_a_plan_that_hardly_loses(topology_of: Build) -> None:
    replans = {}
    for rule in ("change", "gain"):
        world = World(topology_of({(0, 1): 100, (1, 2): 90, (0, 2): 80}), options=REALISTIC, whole=True)
        training = Training(
            world, "netstorm", {"estimator": "unbiased", "replan": rule, "check_period_s": 0.5}
        )
        for k in range(6):
            step(world, (0, 1), 1.0 + k, 92 if k % 2 else 100)
        training.run(6, elements=250_000)
        replans[rule] = training.measuring.end()["replans"]
    assert replans["gain"] == 0 < 3 <= replans["change"]


def test_idle_links_are_probed_and_probes_are_counted_and_bounded(topology_of: Build) -> None:
    world = World(topology_of({(0, 1): 50, (0, 2): 50, (1, 2): 10}, "2ms"), options=REALISTIC, whole=True)
    options = {"estimator": "unbiased", "probe_idle_s": 1.0, "probe_bytes": 131_072, "check_period_s": 1000}
    star = Training(world, "star-first", options)
    star.run(6)
    counted = star.measuring.end()
    # dc2 - dc3 carries nothing of a star at dc1: two directions, each probed every second at most.
    assert 6 <= counted["probes"] <= 12
    assert counted["probe_bytes"] == 131_072 * counted["probes"]
    for name in ("dc2>dc3", "dc3>dc2"):
        assert counted["measured"][name]["rate_bps"] == pytest.approx(0.94 * 10e6, rel=0.05)


@pytest.mark.parametrize("rule", ["off", "threshold", "capacity"])
def test_detours_take_the_network_s_other_path_and_sums_stay_exact(topology_of: Build, rule: str) -> None:
    """A star whose direct link dc1 - dc2 is slow: over dc3, where no site relays, dc2's chunks find room."""
    world = World(topology_of({(0, 1): 20, (0, 2): 80, (1, 2): 80}), options=REALISTIC, whole=True)
    star = Training(world, "star-first", "off", rule)
    star.run(2)
    counted = star.measuring.end()
    bits = world.network.carried_bits
    over = {(link.src, link.dst): bits[link.index] for link in world.topology.directed}
    if rule == "off":
        assert counted["auxiliary_chunks"] == over[1, 2] == 0
        return
    assert counted["auxiliary_chunks"] >= 2 * len(star.times)
    # What dc2 and dc3 send each other are detours alone, each a chunk with its header.
    assert over[1, 2] + over[2, 1] == pytest.approx(counted["auxiliary_chunks"] * 8 * (4 * CHUNK + 200))


def test_the_same_seed_gives_the_same_run(tmp_path: Path) -> None:
    text = open_experiment("ablation-awareness").text
    for old, new in (
        ("repeats: 2", "repeats: 1"),
        ("iterations: 24", "iterations: 8"),
        ("tensor-500k", "tensor-400k"),
        ("chunk_elements: 25000", "chunk_elements: 20000"),
        ("min_message_bytes: 100000", "min_message_bytes: 80000"),
        ("check_period_s: 1", "check_period_s: 0.5"),
    ):
        assert old in text
        text = text.replace(old, new)
    experiment = experiment_from_text(text)
    followed = []
    for name in ("a", "b"):
        run_experiment(experiment, tmp_path / name)
        events = [json.loads(line) for line in (tmp_path / name / "events.jsonl").read_text().splitlines()]
        found = [event for event in events if event["kind"] == "network-followed" and event["network"]]
        assert {event["segment"] for event in found} == {"published", "published-rule", "unbiased"}
        assert all(event["policies"] and event["network"]["reports"] > 5 for event in found)
        followed.append([{key: event[key] for key in ("policies", "network")} for event in found])
        assert read_run(tmp_path / name).problems == ()
    assert followed[0] == followed[1]


def test_turns_without_measuring_are_the_same_before_and_after_one_with_it(tmp_path: Path) -> None:
    text = """
name: between
topology: netstorm-9
training: {model: tensor-400k, iterations: 2, chunk_elements: 20000}
schedulers:
  - {name: netstorm, label: before}
  - {name: netstorm, label: measured, awareness: {estimator: unbiased, check_period_s: 0.1}, auxiliary: threshold}
  - {name: netstorm, label: after}
"""
    run_experiment(experiment_from_text(text), tmp_path / "run")
    iterations = read_run(tmp_path / "run").iterations
    before, after = ([i.synchronisation_s for i in iterations[label]] for label in ("before", "after"))
    assert before == [pytest.approx(seconds, rel=1e-6) for seconds in after]


def test_the_virtual_clock_calls_back_like_a_loop() -> None:
    clock = VirtualClock()
    timers = VirtualTimers(clock)
    seen: list[tuple[str, float]] = []

    def note(name: str) -> Callable[[], None]:
        return lambda: seen.append((name, timers.time()))

    timers.call_later(2.0, note("later"))
    timers.call_later(1.0, note("cancelled")).cancel()
    timers.call_soon(note("soon"))
    clock.run()
    assert seen == [("soon", 0.0), ("later", 2.0)]
