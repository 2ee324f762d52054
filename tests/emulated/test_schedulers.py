"""Every registered scheduler on a real network, one after the other, with the same workers.

The workers compare every element of every sum with what must come out, and fail the run where one differs.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from agents.planning.registry import library_names, scheduler_names
from agents.planning.tsengine import TsEngine
from agents.sync.decisions import replay
from testbed.experiments.manifest import DECISIONS, read_manifest
from testbed.experiments.run import run_experiment
from testbed.experiments.spec import experiment_from_text
from tests.emulated.conftest import Bring
from topologies.load import load_topology

pytestmark = pytest.mark.emulated

# A ring of four: two pairs of sites are no neighbours. The first link is slow, and slower the one way.
RING = """
name: ring-of-four
sites: {dc1: {}, dc2: {workers: 2}, dc3: {}, dc4: {}}
links:
  - {endpoints: [dc1, dc2], rate: 60mbit, backward: {rate: 30mbit}}
  - {endpoints: [dc2, dc3], rate: 100mbit}
  - {endpoints: [dc3, dc4], rate: 150mbit, delay: 2ms}
  - {endpoints: [dc4, dc1], rate: 100mbit}
"""
SIZES = (1, 123_457, 250_000)  # one chunk of one element; two that no whole number of chunks makes
ITERATIONS = 2

@pytest.fixture(scope="module")
def ring(bring: Bring, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The name of a testbed with that network, and the file of the network."""
    path = tmp_path_factory.mktemp("network") / "ring.yaml"
    path.write_text(RING)
    return bring(load_topology(str(path))).name, path


def test_exact_sums_under_every_scheduler(ring: tuple[str, Path], tmp_path: Path) -> None:
    testbed, topology = ring
    names = (*scheduler_names(), *(library_names() if find_spec("torch") else ()))
    assert "tsengine" in names, "one that decides per transfer is among them"
    # Two of them again: what a scheduler leaves behind must not disturb the next.
    again = ("tsengine", "netstorm")
    turns = [*names, *(f"{{name: {name}, label: {name}-again}}" for name in again)]
    text = f"""
name: all-schedulers
topology: {topology}
seed: 3
training:
  model: tensor-{"+".join(map(str, SIZES))}
  iterations: {ITERATIONS}
  chunk_elements: 9973
  deadline_s: 30
  compute: {{mean: 1ms, sites: {{dc3: 60ms}}}}  # one is slow: the others wait for its contribution
schedulers: [{", ".join(turns)}]
"""
    experiment = experiment_from_text(text)
    run = run_experiment(experiment, out=tmp_path / "runs", testbed=testbed)

    manifest = read_manifest(run)
    assert manifest.status == "completed"
    assert [segment.status for segment in manifest.segments] == ["completed"] * len(SIZES) * len(turns)
    labels = [segment.label for segment in manifest.segments for _ in range(ITERATIONS)]
    assert {segment.scheduler.split("/")[0] for segment in manifest.segments} >= set(names)
    assert len(manifest.workers) == 5
    for worker in manifest.workers:
        # One trace a worker process: the same five ran everything.
        trace = run / worker.directory / "trace.jsonl"
        records = [json.loads(line) for line in trace.read_text().splitlines()]
        assert [record["segment"] for record in records] == labels
        # The fastest iteration: a busy machine may hold any worker up in some.
        fastest = min(record["ready_ns"] - record["start_ns"] for record in records)
        assert (fastest > 5e7) == (worker.site == "dc3")

    decisions = [json.loads(line) for line in (run / DECISIONS).read_text().splitlines()]
    assert {record["segment"].split("/")[0] for record in decisions} == {"tsengine", "tsengine-again"}
    assert replay(decisions, lambda: TsEngine().decider(4), experiment.topology.site_names) is None


def test_a_plan_from_misjudged_rates_changes_inside_the_synchronisation(
    ring: tuple[str, Path], tmp_path: Path
) -> None:
    """Two links carry less than declared from the first moment on; the sites notice, and the sums stay exact."""
    testbed, topology = ring
    text = f"""
name: within
topology: {topology}
training: {{model: tensor-2m, iterations: 3, chunk_elements: 9973, deadline_s: 60}}
schedulers: [packing]
awareness: {{estimator: unbiased, check_period_s: 0.3, min_gain: 0.02, probe_idle_s: 0}}
policy: within
timeline:
  - {{at: 1ms, action: link-set, link: dc1-dc2, rate: 20mbit}}
  - {{at: 1ms, action: link-set, link: dc3-dc4, rate: 60mbit}}
"""
    run = run_experiment(experiment_from_text(text), out=tmp_path / "runs", testbed=testbed)
    assert read_manifest(run).status == "completed", "one wrong bit in any sum of any worker fails the run"
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    (followed,) = (event for event in events if event["kind"] == "network-followed")
    inside = [policy for policy in followed["policies"] if "from_chunk" in policy]
    assert inside, followed
    assert all(0 < policy["from_chunk"] <= 202 and policy["reason"] == "rates" for policy in inside)
