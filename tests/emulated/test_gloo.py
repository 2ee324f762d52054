"""Unmodified PyTorch over gloo takes its turn beside the agents' schedulers: same workers, WAN and measures."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from testbed.experiments.run import run_experiment
from testbed.experiments.spec import experiment_from_text
from testbed.report.measurements import read_run
from testbed.report.summary import summarise_run
from tests.emulated.conftest import Bring

pytestmark = [
    pytest.mark.emulated,
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: UNVERIFIED here"),
]

EXPERIMENT = """
name: baseline
topology: triangle
seed: 2
repeats: 2
order: shuffled
training:
  model: mlp-200k
  data: digits
  batch: 16
  lr: 0.1
  momentum: 0.9
  iterations: 4
  chunk_elements: 20000
  save_parameters: true
  deadline_s: 60
schedulers: [netstorm, packing, gloo]
"""


def test_gloo_in_a_run_with_netstorm_and_packing(bring: Bring, tmp_path: Path) -> None:
    from agents.worker import parameters, reference

    experiment = experiment_from_text(EXPERIMENT)
    standing = bring(experiment.topology)
    path = run_experiment(experiment, out=tmp_path / "runs", testbed=standing.name)
    run = read_run(path)
    assert run.manifest.status == "completed"
    assert {turn.shown for turn in experiment.turns[1:-1]} >= {"gloo"} or experiment.turns[0].shown == "gloo"
    result = summarise_run(run)
    assert [scheduler.scheduler for scheduler in result.schedulers] == ["netstorm", "packing", "gloo"]
    first = path / run.manifest.workers[0].directory
    for scheduler in result.schedulers:
        assert scheduler.measured == 8
        assert scheduler.parameters_agree is True, scheduler.disagreeing
        assert scheduler.synchronisation is not None
        assert scheduler.synchronisation.minimum > 0
        for label in (f"{scheduler.scheduler}#1", f"{scheduler.scheduler}#2"):
            found = reference.compare(*parameters.load(first / f"parameters-{label.replace('#', '-')}.npz"))
            assert (found.iterations, found.within_tolerance) == (4, True), (label, found)
            assert found.moved > 0.01, "a training that moved nothing shows nothing"
    gloo = result.find("gloo")
    assert gloo is not None
    carried, model = gloo.carried_bytes_per_iteration, 4 * gloo.elements
    assert carried is not None
    # Three ranks' ring: each of its hops carries 4/3 of the model. All of it over the WAN's links, and no more.
    assert 4 * model < carried < 1.4 * 4 * model
