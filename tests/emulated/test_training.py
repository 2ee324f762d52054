"""Training across the emulated WAN comes to what a single process comes to, whatever the scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testbed.emulation import launch
from testbed.experiments.run import run_experiment
from testbed.experiments.spec import experiment_from_text
from testbed.report.measurements import read_run
from testbed.report.summary import summarise_run
from tests.emulated.conftest import Bring

pytestmark = pytest.mark.emulated

EXPERIMENT = """
name: equality
topology: {topology}
training:
  model: {model}
  data: digits
  batch: 16
  lr: 0.1
  momentum: 0.9
  iterations: 20
  chunk_elements: {chunk}
  save_parameters: true
schedulers:
  - {{name: star, options: {{server: first}}}}
  - netstorm
"""


@pytest.fixture
def name(unique_name: Callable[[], str]) -> Iterator[str]:
    """A name for a testbed, which is down afterwards whatever happened."""
    chosen = unique_name()
    yield chosen
    if any(listed.name == chosen for listed in launch.list_testbeds()):
        launch.down(chosen)


@pytest.mark.parametrize(
    ("topology", "model", "chunk"), [("triangle", "2nn", 20_000), ("netstorm-9", "mlp-50k", 5_000)]
)
def test_twenty_iterations_equal_a_single_process(
    tmp_path: Path, name: str, topology: str, model: str, chunk: int
) -> None:
    reference = pytest.importorskip("agents.worker.reference", reason="torch is not installed: unverified")
    parameters = pytest.importorskip("agents.worker.parameters", reason="torch is not installed: unverified")
    text = EXPERIMENT.format(topology=topology, model=model, chunk=chunk)
    path = run_experiment(experiment_from_text(text), out=tmp_path / "runs", testbed=name)
    run = read_run(path)
    result = summarise_run(run)
    assert [scheduler.scheduler for scheduler in result.schedulers] == ["star-first", "netstorm"]
    for scheduler in result.schedulers:
        assert scheduler.measured == 20
        # Every worker ends with the same parameters, to the bit.
        assert scheduler.parameters_agree is True, scheduler.disagreeing
        file = path / run.manifest.workers[0].directory / f"parameters-{scheduler.scheduler}.npz"
        found = reference.compare(*parameters.load(file))
        assert found.iterations == 20
        assert found.parameters == scheduler.elements
        assert found.moved > 0.01, "a training that moved nothing shows nothing"
        assert found.within_tolerance, found


LEARNS = """
name: learns
topology: pair
training: {{model: {model}, batch: {batch}, {options}, eval_every: {iterations}}}
schedulers: [{{name: packing, iterations: {iterations}}}]
"""


@pytest.fixture(scope="module")
def pair(bring: Bring) -> str:
    """The name of a pair that stands for all models."""
    return bring("pair").name


# What to reach: ten classes, so that guessing has a tenth (of the docstrings, 15 % are from one module).
@pytest.mark.parametrize(
    ("model", "options", "batch", "iterations", "accuracy"),
    [
        ("2nn", "optimizer: adam, lr: 0.003", 32, 25, 0.6),
        ("cnn", "optimizer: adam, lr: 0.002", 16, 14, 0.6),
        ("textcnn", "optimizer: adam, lr: 0.005", 48, 30, 0.5),
    ],
)
def test_the_three_models_learn(
    pair: str, tmp_path: Path, model: str, options: str, batch: int, iterations: int, accuracy: float
) -> None:
    pytest.importorskip("agents.worker.models", reason="torch is not installed: unverified")
    text = LEARNS.format(model=model, options=options, batch=batch, iterations=iterations)
    experiment = experiment_from_text(text)
    result = summarise_run(read_run(run_experiment(experiment, out=tmp_path / "runs", testbed=pair)))
    (scheduler,) = result.schedulers
    assert scheduler.parameters_agree is True, scheduler.disagreeing
    assert scheduler.accuracy is not None
    assert scheduler.accuracy > accuracy


SPLIT = """
name: split
topology: triangle
training:
  model: mlp-20k
  batch: 16
  lr: 0.1
  momentum: 0.9
  iterations: 10
  compute: {mean: 150ms, sites: {dc3: 600ms}}
  save_parameters: true
schedulers:
  - {name: greedw, warmup: 5}
  - {name: greedw, warmup: 5, batches: split, label: greedw-split}
"""


def test_a_batch_split_by_speed_ends_the_wait_for_a_slow_site(tmp_path: Path, name: str) -> None:
    """One of three sites four times slower: less idle time, shorter iterations, the same parameters."""
    reference = pytest.importorskip("agents.worker.reference", reason="torch is not installed: unverified")
    parameters = pytest.importorskip("agents.worker.parameters", reason="torch is not installed: unverified")
    path = run_experiment(experiment_from_text(SPLIT), out=tmp_path / "runs", testbed=name)
    run = read_run(path)
    equal, split = summarise_run(run).schedulers
    for scheduler in (equal, split):
        assert scheduler.parameters_agree is True, scheduler.disagreeing
        file = path / run.manifest.workers[0].directory / f"parameters-{scheduler.scheduler}.npz"
        found = reference.compare(*parameters.load(file))
        assert (found.iterations, found.within_tolerance) == (10, True), found
        assert found.moved > 0.01
    assert equal.idle is not None
    assert split.idle is not None
    assert equal.iteration is not None
    assert split.iteration is not None
    # Equal, the first two wait 0.45 s in each iteration of 0.6 s; split, all take about 0.27 s.
    # The usual iteration: one in which the machine stalls is no longer for the split.
    assert split.idle.median < 0.6 * equal.idle.median
    assert split.iteration.median < 0.85 * equal.iteration.median


OVERLAP = """
name: overlap
topology: {topology}
training:
  model: mlp-500k
  batch: 16
  lr: 0.1
  momentum: 0.9
  iterations: 4
  chunk_elements: 20000
  compute: {{mean: 600ms}}
  overlap: {overlap}
  bucket_bytes: 500000
  save_parameters: true
schedulers:
  - {{name: netstorm, warmup: 2}}
  - {{name: tsengine, warmup: 2}}
  - {{name: packing, warmup: 2}}
"""


def test_gradients_overlap_with_the_backward_pass(bring: Bring, tmp_path: Path) -> None:
    """Shorter iterations than without, and the same parameters as a single process, whatever the scheduler."""
    reference = pytest.importorskip("agents.worker.reference", reason="torch is not installed: unverified")
    parameters = pytest.importorskip("agents.worker.parameters", reason="torch is not installed: unverified")
    slow = tmp_path / "slow.yaml"
    slow.write_text("name: slow\nsites: {a: {}, b: {}}\nlinks: [{endpoints: [a, b], rate: 20mbit}]\n")
    fastest: dict[str, list[float]] = {}
    testbed = None
    for overlap in ("false", "true"):
        experiment = experiment_from_text(OVERLAP.format(topology=slow, overlap=overlap))
        testbed = testbed or bring(experiment.topology).name
        path = run_experiment(experiment, out=tmp_path / overlap, testbed=testbed)
        run = read_run(path)
        for scheduler in summarise_run(run).schedulers:
            assert scheduler.parameters_agree is True, scheduler.disagreeing
            file = path / run.manifest.workers[0].directory / f"parameters-{scheduler.scheduler}.npz"
            found = reference.compare(*parameters.load(file))
            assert (found.iterations, found.within_tolerance) == (4, True), (scheduler.scheduler, found)
            assert scheduler.iteration is not None
            fastest.setdefault(scheduler.scheduler, []).append(scheduler.iteration.minimum)
    # A third of the 0.8 s that the gradients take on the link is under way before the backward pass has ended. Of
    # the fastest iteration: what a busy machine adds to one is neither's.
    for name, (without, with_overlap) in fastest.items():
        assert with_overlap < 0.95 * without, (name, fastest)
