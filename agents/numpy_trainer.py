"""A perceptron in numpy, trained by stochastic gradient descent: real training that needs no torch.

`python -m agents.numpy_trainer` serves the trials of a site (`agents.trials`).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from agents.trials import TrialSegment, Vector, serve
from topologies.errors import UsageError

Matrix = npt.NDArray[np.float32]


class NumpyTrainer:
    """Fully connected layers with ReLU between them, cross-entropy on the last.

    Weights begin as He et al. (2015) draw them, from the seed; biases at 0.

    Args:
        layers: widths, inputs and classes included.
        seed: of the first weights.
    """

    def __init__(self, layers: tuple[int, ...], seed: int) -> None:
        if len(layers) < 2:
            raise UsageError("the numpy trainer trains perceptrons only", hint="a model mlp-SIZE or 2nn")
        generator = np.random.default_rng(seed)
        shapes = [
            shape
            for before, after in pairwise(layers)
            for shape in ((before, after), (after,))
        ]
        self._all = np.zeros(sum(int(np.prod(shape)) for shape in shapes), np.float32)
        self._velocity = np.zeros_like(self._all)
        self._shapes = shapes
        for weights in self._views(self._all)[::2]:
            scale = np.sqrt(2 / weights.shape[0])
            weights[...] = scale * generator.standard_normal(weights.shape, dtype=np.float32)

    @property
    def size(self) -> int:
        return len(self._all)

    def _views(self, flat: Vector) -> list[Matrix]:
        """Weights and biases of each layer as parts of one vector."""
        views, at = [], 0
        for shape in self._shapes:
            count = int(np.prod(shape))
            views.append(flat[at : at + count].reshape(shape))
            at += count
        return views

    def gradient(self, images: Any, labels: Any, out: Vector) -> float:
        parameters, gradients = self._views(self._all), self._views(out)
        with np.errstate(all="ignore"):  # a learning rate that is too high shows in the score
            activations = self._forward(images)
            loss, error = _cross_entropy(activations[-1], labels)
            for layer in reversed(range(len(parameters) // 2)):
                np.matmul(activations[layer].T, error, out=gradients[2 * layer])
                gradients[2 * layer + 1][...] = error.sum(0)
                if layer:
                    error = (error @ parameters[2 * layer].T) * (activations[layer] > 0)
        return loss

    def step(self, gradient: Vector, segment: TrialSegment) -> None:
        if segment.optimizer != "sgd":
            raise UsageError(f"the numpy trainer has no optimizer {segment.optimizer}", hint="sgd, or trainer: torch")
        with np.errstate(all="ignore"):
            self._velocity *= np.float32(segment.momentum)
            self._velocity += gradient
            self._all -= np.float32(segment.lr) * self._velocity

    def loss(self, images: Any, labels: Any) -> float:
        with np.errstate(all="ignore"):
            return _cross_entropy(self._forward(images)[-1], labels)[0]

    def state(self) -> dict[str, npt.NDArray[Any]]:
        return {"parameters": self._all, "velocity": self._velocity}

    def load(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        if {name: array.shape for name, array in state.items()} != {
            "parameters": self._all.shape,
            "velocity": self._velocity.shape,
        }:
            raise UsageError("the state to go on from is another model's", hint="copy between equal models only")
        self._all[...] = state["parameters"]
        self._velocity[...] = state["velocity"]

    def _forward(self, images: Any) -> list[Matrix]:
        parameters = self._views(self._all)
        activations = [np.ascontiguousarray(images, np.float32).reshape(len(images), -1)]
        for layer in range(len(parameters) // 2):
            values = activations[-1] @ parameters[2 * layer] + parameters[2 * layer + 1]
            last = 2 * layer + 2 == len(parameters)
            activations.append(values if last else np.maximum(values, 0))
        return activations


def _cross_entropy(logits: Matrix, labels: Any) -> tuple[float, Matrix]:
    """Mean loss, and its gradient by the logits."""
    shifted = logits - logits.max(1, keepdims=True)
    exponentials = np.exp(shifted)
    total = exponentials.sum(1, keepdims=True)
    rows = np.arange(len(labels))
    loss = float((np.log(total[:, 0]) - shifted[rows, labels]).mean())
    error = exponentials / total
    error[rows, labels] -= 1
    error /= len(labels)
    return loss, error


def make_trainer(segment: TrialSegment) -> NumpyTrainer:
    return NumpyTrainer(segment.layers, segment.seed)


if __name__ == "__main__":
    raise SystemExit(serve(make_trainer, "numpy trainer"))
