"""Trials: the numpy trainer's gradients, data-parallel training through agents, many jobs in one process."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents import trials
from agents.data import Batches, load_dataset
from agents.numpy_trainer import NumpyTrainer, make_trainer
from agents.trials import Datasets, TrialSegment, TrialWorker, serve
from tests.unit.agents.conftest import Cluster, everywhere
from topologies.errors import UsageError

LAYERS = (784, 6, 5, 10)


def segment(**changes: Any) -> TrialSegment:
    given = {"label": "s", "iterations": 3, "layers": LAYERS, "model": "mlp", "batch": 8, "lr": 0.1, "seed": 4}
    return TrialSegment.parse({**given, **changes})


def test_gradients_are_those_of_the_loss() -> None:
    data = load_dataset("digits")
    images, labels = data.train_x[:16].astype(np.float64), data.train_y[:16]
    trainer = NumpyTrainer(LAYERS, 1)
    gradient = np.empty(trainer.size, np.float32)
    loss = trainer.gradient(images, labels, gradient)
    assert loss == pytest.approx(trainer.loss(images, labels), rel=1e-5)
    rng = np.random.default_rng(2)
    for _ in range(5):
        direction = rng.standard_normal(trainer.size).astype(np.float32)
        direction /= np.linalg.norm(direction)
        ends = []
        for sign in (1, -1):
            moved = NumpyTrainer(LAYERS, 1)
            moved._all += np.float32(sign * 3e-2) * direction
            ends.append(moved.loss(images, labels))
        assert (ends[0] - ends[1]) / 6e-2 == pytest.approx(float(gradient @ direction), abs=3e-3)


def test_training_learns_and_momentum_and_state_count() -> None:
    data = load_dataset("digits")

    def train(trainer: NumpyTrainer, first: int, last: int, **changes: Any) -> NumpyTrainer:
        batches, gradient = Batches(data, 32, 2, 7), np.empty(trainer.size, np.float32)
        for number in range(first, last):
            trainer.gradient(*batches.of(number), gradient)
            trainer.step(gradient, segment(**changes))
        return trainer

    def start() -> NumpyTrainer:
        return NumpyTrainer((784, 20, 20, 10), 3)

    whole = train(start(), 0, 40, momentum=0.9)
    before, after = start().loss(data.test_x, data.test_y), whole.loss(data.test_x, data.test_y)
    assert after < 0.7 * before
    half = train(start(), 0, 20, momentum=0.9)
    other = start()
    other.load({name: array.copy() for name, array in half.state().items()})
    train(other, 20, 40, momentum=0.9)
    assert np.array_equal(other.state()["parameters"], whole.state()["parameters"])
    with pytest.raises(UsageError, match="another model's"):
        NumpyTrainer(LAYERS, 1).load(whole.state())
    with pytest.raises(UsageError, match="no optimizer adam"):
        NumpyTrainer(LAYERS, 1).step(np.empty(0, np.float32), segment(optimizer="adam"))
    with pytest.raises(UsageError, match="perceptrons only"):
        NumpyTrainer((), 1)


def test_workers_of_a_trial_come_to_what_one_process_does(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    """Two trials at once over two sites; the second rung goes on, and a third trial from a kept state."""
    cluster = make_cluster("pair")
    runner = cluster.runner()
    jobs = ("a", "b")
    for job in jobs:
        runner.open_job({"job": job, "sites": {"dc1": 1, "dc2": 1}, "chunk_elements": 1000})
    datasets = Datasets()

    def work(job: str, site: int) -> None:
        with cluster.join(site, job) as client:
            client._out = tmp_path / f"{job}-{site}"
            client._out.mkdir()
            TrialWorker(client, make_trainer, datasets).run()

    threads = [threading.Thread(target=work, args=(job, k), daemon=True) for job in jobs for k in range(2)]
    for thread in threads:
        thread.start()
    saved = str(tmp_path / "state.npz")
    common = {"layers": LAYERS, "model": "mlp", "batch": 8, "lr": 0.1, "scheduler": "star"}
    onward = {"iterations": 3, "start": 2, "fresh": False}
    rungs = [
        {"a": {"iterations": 2, "seed": 4, "save": saved}, "b": {"iterations": 2, "seed": 5}},
        {"a": {**onward, "seed": 4}, "b": {**onward, "seed": 5, "load": saved}},
    ]

    def segment_of(job: str, label: str, fields: dict[str, Any]) -> Callable[[], Any]:
        return lambda: cluster.runner().run_segment(job, {**common, "label": label, **fields})

    for number, rung in enumerate(rungs):
        everywhere({job: segment_of(job, f"{job}{number}", fields) for job, fields in rung.items()})
    for job in jobs:
        runner.close_job(job)
    for thread in threads:
        thread.join(10)

    data = load_dataset("digits")

    def alone(first: NumpyTrainer, seed: int, numbers: range) -> float:
        batches, gradient = Batches(data, 8, 2, seed), np.empty(first.size, np.float32)
        for number in numbers:
            first.gradient(*batches.of(number), gradient)
            first.step(gradient, segment())
        return first.loss(data.test_x, data.test_y)

    def scores(job: str) -> list[float]:
        lines = [json.loads(line) for line in (tmp_path / f"{job}-0" / "trace.jsonl").read_text().splitlines()]
        assert [line["iteration"] for line in lines] == [0, 1, 2, 3, 4]
        return [line["score"] for line in lines if "score" in line]

    whole = NumpyTrainer(LAYERS, 4)
    assert scores("a") == pytest.approx([alone(whole, 4, range(2)), alone(whole, 4, range(2, 5))], rel=1e-4)
    copied = NumpyTrainer(LAYERS, 4)
    alone(copied, 4, range(2))
    assert scores("b")[1] == pytest.approx(alone(copied, 5, range(2, 5)), rel=1e-4)


def test_serving_names_what_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv(trials.JOBS_VARIABLE, raising=False)
    assert serve(make_trainer, "trainer") == 2
    assert "not started through the testbed" in capsys.readouterr().err
    for name, value in (("RUN_DIR", "/"), ("SITE", "dc1"), ("JOBS", "[]"), ("DATA", "/no/such.npz")):
        monkeypatch.setenv(f"STORMBED_{name}", value)
    assert serve(make_trainer, "trainer") == 2
    assert "/no/such.npz" in capsys.readouterr().err
    monkeypatch.setenv("STORMBED_DATA", "digits")
    assert serve(make_trainer, "trainer") == 0, "nothing to do"


def test_a_segment_that_makes_no_sense_is_refused_by_its_field() -> None:
    with pytest.raises(UsageError, match="segment 's': lr"):
        segment(lr=0)
    with pytest.raises(UsageError, match="segment 's': iterations"):
        segment(iterations=0)
