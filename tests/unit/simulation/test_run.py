"""Experiments in the simulated world: the run directory, times, repeatability, failures."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import pytest

from agents.compute import ComputeTime
from agents.planning.tsengine import TsEngine
from agents.sync.decisions import replay
from testbed.dashboard.replay import read_replay
from testbed.experiments.manifest import DECISIONS, read_manifest
from testbed.experiments.spec import Compute, LoadedExperiment, experiment_from_text, open_experiment
from testbed.report.decisions import count_decisions
from testbed.report.measurements import read_run
from testbed.simulation.iterations import compute_seconds
from testbed.simulation.run import run_experiment
from testbed.simulation.synchronise import synchronise
from testbed.simulation.world import REALISTIC, WorldOptions
from topologies.errors import RunFailedError
from topologies.units import Delay

SMALL = """
name: small
topology: triangle
seed: 4
training:
  model: mlp-100k
  iterations: 3
  chunk_elements: 10000
  compute: {mean: 200ms, cv: 0.3, sites: {dc2: 500ms}}
schedulers: [star, netstorm]
"""


def small(tmp_path: Path, change: str = "", by: str = "") -> LoadedExperiment:
    assert change in SMALL
    return experiment_from_text(SMALL.replace(change, by) if change else SMALL)


def test_the_directory_reads_like_any_run(tmp_path: Path) -> None:
    said: list[str] = []
    manifest = run_experiment(small(tmp_path), tmp_path / "run", said.append)
    assert manifest.status == "completed"
    run = read_run(tmp_path / "run")
    assert run.problems == ()
    assert run.manifest.world == "simulated"
    assert run.manifest.fidelity.verdict == "exact"
    elements = run.manifest.segments[0].elements
    assert elements == pytest.approx(100_000, rel=0.01)
    assert [segment.status for segment in run.manifest.segments] == ["completed", "completed"]
    assert all(segment.plan is not None for segment in run.manifest.segments)
    for iterations in run.iterations.values():
        assert [i.complete for i in iterations] == [True] * 3
        for iteration in iterations:
            assert iteration.synchronisation_s is not None
            assert iteration.iteration_s is not None
            assert 0 < iteration.synchronisation_s < iteration.iteration_s
    carried = sum(sample.carried_bytes for sample in run.links if sample.segment == "netstorm")
    # Each of three iterations sends the model up and down both edges of its trees, headers besides.
    assert carried * REALISTIC.efficiency == pytest.approx(3 * 4 * 4 * elements, rel=0.02)
    assert any("netstorm" in text for text in said)


def test_iterations_wait_for_the_slowest_and_traces_repeat(tmp_path: Path) -> None:
    for name in ("a", "b"):
        run_experiment(small(tmp_path), tmp_path / name)
    traces = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("trace.jsonl"))
    assert len(traces) == 3
    for trace in traces:
        assert (tmp_path / "a" / trace).read_text() == (tmp_path / "b" / trace).read_text()
    first = [json.loads(line) for line in (tmp_path / "a" / traces[0]).read_text().splitlines()]
    assert [r["iteration"] for r in first] == [0, 1, 2, 0, 1, 2]
    assert all(r["start_ns"] < r["ready_ns"] < r["done_ns"] == r["end_ns"] for r in first)
    assert all(a["end_ns"] == b["start_ns"] for a, b in pairwise(first[:3]))


def test_turns_run_in_their_order_and_the_directory_keeps_that_of_the_file(tmp_path: Path) -> None:
    experiment = small(tmp_path, "[star, netstorm]", "[star, mlnet, netstorm]\nrepeats: 2\norder: shuffled")
    declared = [segment.label for segment in experiment.segments]
    turns = [segment.label for segment in experiment.turns]
    assert turns != declared
    manifest = run_experiment(experiment, tmp_path / "run")
    assert [segment.label for segment in manifest.segments] == declared
    by_time = sorted(manifest.segments, key=lambda segment: segment.started_ns or 0)
    assert [segment.label for segment in by_time] == turns
    trace = (tmp_path / "run" / "workers" / "dc1-0" / "trace.jsonl").read_text().splitlines()
    assert list(dict.fromkeys(json.loads(line)["segment"] for line in trace)) == turns
    assert [segment["label"] for segment in read_replay(tmp_path / "run")["segments"]] == turns


def test_links_are_sampled_once_a_second_of_every_turn(tmp_path: Path) -> None:
    text = SMALL.replace("[star, netstorm]", "[star, netstorm, mlnet]\nrepeats: 3").replace("200ms", "900ms")
    run_experiment(experiment_from_text(text), tmp_path / "run")
    run = read_run(tmp_path / "run")
    for segment in run.manifest.segments:
        assert segment.finished_ns is not None and segment.started_ns is not None
        seconds = (segment.finished_ns - segment.started_ns) / 1e9
        of_link = [s.interval_s for s in run.links if (s.segment, s.src, s.dst) == (segment.label, "dc1", "dc2")]
        assert of_link[:-1] == [pytest.approx(1.0)] * int(seconds)
        assert sum(of_link) == pytest.approx(seconds, abs=1e-3)


def test_a_segment_takes_what_one_synchronisation_takes(tmp_path: Path) -> None:
    """Without computing, on an ideal network, a run is one synchronisation after the other."""
    experiment = open_experiment("quickstart")
    run_experiment(experiment, tmp_path / "run", options=WorldOptions())
    measured = read_run(tmp_path / "run").iterations
    for name in ("star-first", "netstorm"):
        alone = synchronise(experiment.topology, name, experiment.segments[0].elements, 100_000)
        seconds = [i.synchronisation_s for i in measured[name]]
        assert seconds == [pytest.approx(alone.seconds, rel=1e-6)] * len(seconds)


def test_compute_times_are_those_of_the_emulated_workers() -> None:
    compute = Compute(mean=Delay.parse("200ms"), cv=0.2, sites={"dc2": Delay.parse("1s")})
    assert compute_seconds(compute, "dc1", 7, 3, 5) == ComputeTime(mean_s=0.2, cv=0.2).draw(7, 3, 5)
    assert compute_seconds(compute, "dc2", 7, 3, 5) == ComputeTime(mean_s=1.0, cv=0.2).draw(7, 3, 5)
    assert compute_seconds(Compute(), "dc1", 7, 3, 5) == 0.0


def test_several_workers_a_site_are_ready_with_the_last(tmp_path: Path) -> None:
    topology = tmp_path / "two.yaml"
    topology.write_text(
        "name: two\nsites: {a: {workers: 3}, b: {}}\n"
        "links: [{endpoints: [a, b], rate: 100mbit, delay: 1ms}]\n"
    )
    text = SMALL.replace("topology: triangle", f"topology: {topology}").replace(", sites: {dc2: 500ms}", "")
    run_experiment(experiment_from_text(text), tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert [worker.rank for worker in run.manifest.workers] == [0, 1, 2, 3]
    ready = []
    for worker in run.manifest.workers:
        trace = (tmp_path / "run" / worker.directory / "trace.jsonl").read_text().splitlines()
        ready.append(json.loads(trace[0])["ready_ns"])
    assert len(set(ready)) == 4
    assert run.problems == ()


def test_a_deadline_that_is_missed_fails_the_run_and_says_so(tmp_path: Path) -> None:
    experiment = small(tmp_path, "iterations: 3", "iterations: 3\n  deadline_s: 2")
    slow = experiment_from_text(experiment.text.replace("mlp-100k", "mlp-100m").replace("10000", "1000000"))
    with pytest.raises(RunFailedError, match=r"^waited 2 s for collective 0 of job run"):
        run_experiment(slow, tmp_path / "run")
    manifest = read_manifest(tmp_path / "run")
    assert manifest.status == "failed"
    assert manifest.failure is not None
    assert manifest.failure.exit_code == 5
    assert [segment.status for segment in manifest.segments] == ["failed", "waiting"]


def test_what_is_not_simulated_is_said(tmp_path: Path) -> None:
    topology = tmp_path / "lossy.yaml"
    topology.write_text(
        "name: lossy\nsites: {a: {}, b: {}}\n"
        "links: [{endpoints: [a, b], rate: 100mbit, loss: 0.1%, jitter: 1ms, delay: 5ms}]\n"
    )
    text = SMALL.replace("topology: triangle", f"topology: {topology}").replace(
        "compute: {mean: 200ms, cv: 0.3, sites: {dc2: 500ms}}", "compute: real"
    )
    manifest = run_experiment(experiment_from_text(text), tmp_path / "run")
    told = " ".join(manifest.fidelity.reasons)
    payload = f"{REALISTIC.efficiency:.0%}"
    for words in ("loss of 2 directed links", "jitter", "computation counts as no time", payload):
        assert words in told


def test_needs_neither_torch_nor_mininet_nor_fabric() -> None:
    """The simulated world and its verbs on a machine that has none of them."""
    missing = ("torch", "mininet", "fabric", "paramiko", "invoke", "os_ken")
    block = f"import sys; sys.modules.update(dict.fromkeys({missing!r}, None)); "
    worlds = "import testbed.simulation.run, testbed.simulation.bounds, testbed.simulation.trials"
    verbs = "from testbed.cli import main; main()"
    for program, words in (
        (f"{block} sys.modules['testbed.emulation'] = None; {worlds}", []),
        (block + verbs, ["bound", "netstorm-9"]),
    ):
        command = [sys.executable, "-c", program, *words]
        answer = subprocess.run(command, timeout=120, capture_output=True, text=True)
        assert answer.returncode == 0, answer.stderr


def test_policies_announced_ahead_wait_for_no_coordinator(tmp_path: Path) -> None:
    """A distant coordinator: with the barrier each collective waits for it, announced it does not."""
    means = {}
    for switch in ("barrier", "announced"):
        text = SMALL.replace("schedulers:", f"policy: {{switch: {switch}, every: 1}}\nschedulers:")
        text = text.replace("[star, netstorm]", "[{name: netstorm, options: {paths: random}}]")
        options = replace(REALISTIC, control_delay_ns=50_000_000)
        run_experiment(experiment_from_text(text), tmp_path / switch, options=options)
        (iterations,) = read_run(tmp_path / switch).iterations.values()
        means[switch] = sum(i.synchronisation_s or 0 for i in iterations[1:]) / len(iterations[1:])
    assert 0.08 < means["barrier"] - means["announced"] < 0.12


def test_a_coordinator_at_a_site_is_as_far_as_the_links_delay(tmp_path: Path) -> None:
    seconds = {}
    for place in ("management", "{site: dc1}"):
        for switch in ("barrier", "announced"):
            text = SMALL.replace("schedulers:", f"policy: {switch}\ncoordinator: {place}\nschedulers:")
            path = tmp_path / f"{place[:5]}-{switch}"
            run_experiment(experiment_from_text(text.replace("[star, netstorm]", "[netstorm]")), path)
            (iterations,) = read_run(path).iterations.values()
            seconds[place, switch] = iterations[-1].synchronisation_s or 0
    # The triangle's links have 10 ms: to the coordinator and back. Announced ahead, nobody waits for it.
    at_a_site = seconds["{site: dc1}", "barrier"] - seconds["management", "barrier"]
    assert 0.015 < at_a_site < 0.021
    assert abs(seconds["{site: dc1}", "announced"] - seconds["management", "announced"]) < 0.001


def test_a_turn_begins_under_its_own_policy_whatever_was_settled_in_the_one_before(tmp_path: Path) -> None:
    text = SMALL.replace(
        "[star, netstorm]", "[{name: netstorm, policy: {switch: announced, every: 1, ahead: 3}}, star, tsengine]"
    )
    run_experiment(experiment_from_text(text), tmp_path / "run")
    lines = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    followed = [event for event in map(json.loads, lines) if event["kind"] == "network-followed"]
    assert [(p["reason"], p["from_seq"]) for event in followed[1:] for p in event["policies"]] == [
        ("start", 3),
        ("start", 6),
    ]
    first = [p["from_seq"] for p in followed[0]["policies"]]
    assert first == sorted(set(first)), "a policy that was replaced before it began is not among them"


@pytest.mark.parametrize("measured", ["", "auxiliary: threshold"])
def test_greedw_hears_which_site_was_late_and_sums_the_others_meanwhile(tmp_path: Path, measured: str) -> None:
    """Five sites, each joined to each, 19.4 s a transfer; dc3 computes for 50 s and the others for a tenth of one.

    While dc3 computes the others' sum is made, so what is left is dc3's transfer, and one that brings the result: two
    instead of four.
    """
    names = [f"dc{k}" for k in range(1, 6)]
    links = [{"endpoints": ends, "rate": "100mbit"} for ends in combinations(names, 2)]
    topology = tmp_path / "mesh.yaml"
    topology.write_text(json.dumps({"name": "mesh", "sites": {name: {} for name in names}, "links": links}))
    text = f"""
name: late
topology: {topology}
training:
  model: tensor-57029322
  iterations: 3
  chunk_elements: 57029322
  compute: {{mean: 100ms, sites: {{dc3: 50s}}}}
schedulers: [greedw, {{name: greedw, label: deaf, policy: {{every: 0}}}}]
{measured}
"""
    run_experiment(experiment_from_text(text), tmp_path / "run")
    iterations = read_run(tmp_path / "run").iterations
    heard, deaf = ([i.synchronisation_s for i in iterations[label]] for label in ("greedw", "deaf"))
    transfer_s = 32 * 57_029_322 / 94e6
    assert deaf == [pytest.approx(4 * transfer_s, rel=1e-3)] * 3
    assert heard == [pytest.approx(n * transfer_s, rel=1e-3) for n in (4, 4, 2)], "it was late once, then it is known"


def test_decided_transfers_are_logged_and_counted(tmp_path: Path) -> None:
    one = small(tmp_path, "schedulers: [star, netstorm]", "schedulers: [netstorm, tsengine]\nrepeats: 2")
    manifest = run_experiment(one, tmp_path / "run")
    records = [json.loads(line) for line in (tmp_path / "run" / DECISIONS).read_text().splitlines()]
    assert {record["segment"] for record in records} == {"tsengine#1", "tsengine#2"}
    names = one.topology.site_names
    assert replay(records, lambda: TsEngine().decider(3), names) is None
    # A decider that draws otherwise parts from the log, and it is told where.
    other = replay(records, lambda: TsEngine(seed=1).decider(3), names)
    assert other is not None
    assert other["event"] == "holds"

    (counts,) = count_decisions(tmp_path / "run", manifest)
    chunks = [record for record in records if record["chunk"] is not None]
    rounds = {(record["segment"], record["round"], record["chunk"]) for record in chunks}
    assert counts.total == 2 * 2 * len(rounds), "two sites besides the server, up and down"
    assert counts.scheduler == "tsengine"
    assert str(counts).startswith(f"tsengine decided {counts.total} transfers: pu")
    assert {(phase, mode) for phase, mode, _ in counts.transfers} >= {("push", "server"), ("pull", "greedy")}
    assert count_decisions(tmp_path, manifest) == ()
