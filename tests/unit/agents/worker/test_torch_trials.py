"""The torch trainer of trials against the numpy one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from agents.data import load_dataset
from agents.numpy_trainer import NumpyTrainer
from agents.trials import TrialSegment
from agents.worker.trials import TorchTrainer, warm_up
from topologies.errors import UsageError


def segment(**changes: object) -> TrialSegment:
    given = {"label": "s", "iterations": 3, "model": "mlp-20k", "batch": 8, "lr": 0.1, "seed": 4}
    return TrialSegment.parse({**given, **changes})


def test_torch_trains_a_perceptron_as_numpy_does() -> None:
    """Where both begin with the same weights, steps go the same way."""
    data = load_dataset("digits")
    images, labels = data.train_x[:32], data.train_y[:32]
    given = segment(model="mlp-20k", momentum=0.5)
    there = TorchTrainer(given)
    widths = [p.shape[1] for p in there._parameters[::2]] + [10]
    here = NumpyTrainer(tuple(widths), 0)
    assert here.size == there.size
    # torch keeps a layer's weights as (out, in), numpy as (in, out).
    with torch.no_grad():
        for view, parameter in zip(here._views(here._all), there._parameters, strict=True):
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(view.T)))
    ours, theirs = np.empty(here.size, np.float32), np.empty(there.size, np.float32)
    for _ in range(2):
        assert here.gradient(images, labels, ours) == pytest.approx(there.gradient(images, labels, theirs), rel=1e-4)
        here.step(ours, given)
        there.step(theirs, given)
    assert here.loss(images, labels) == pytest.approx(there.loss(images, labels), rel=1e-4)
    copy = TorchTrainer(segment(model="mlp-20k", seed=9))
    copy.load({name: array.copy() for name, array in there.state().items()})
    assert copy.loss(images, labels) == there.loss(images, labels)
    with pytest.raises(UsageError, match="another model's"):
        copy.load({})


def test_adam_goes_on_from_a_state_as_if_nothing_had_been() -> None:
    data = load_dataset("digits")
    given = segment(optimizer="adam", lr=0.01)

    def steps(trainer: TorchTrainer, count: int) -> float:
        gradient = np.empty(trainer.size, np.float32)
        for _ in range(count):
            trainer.gradient(data.train_x[:32], data.train_y[:32], gradient)
            trainer.step(gradient, given)
        return trainer.loss(data.test_x, data.test_y)

    whole, half, other = TorchTrainer(given), TorchTrainer(given), TorchTrainer(given)
    steps(half, 3)
    other.load({name: array.copy() for name, array in half.state().items()})
    assert steps(other, 3) == steps(whole, 6)


def test_the_warm_up_runs_and_leaves_nothing_behind() -> None:
    before = torch.get_rng_state()
    warm_up()
    given = segment(seed=3)
    first = TorchTrainer(given)
    torch.set_rng_state(before)
    assert all(torch.equal(a, b) for a, b in zip(first._parameters, TorchTrainer(given)._parameters, strict=True))
