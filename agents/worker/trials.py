"""The trials of a site with torch: `python -m agents.worker.trials`; see `agents.trials`."""

# No DDP: it makes collectives of its own, and a trial's coflow is to be its gradients alone.

import os
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from agents.trials import TrialSegment, Vector, serve
from agents.worker.models import build_model
from topologies.errors import UsageError


class TorchTrainer:
    """A model of `agents.worker.models` with SGD or Adam.

    Args:
        segment: the first segment, which decides model, optimizer and first weights.
    """

    def __init__(self, segment: TrialSegment) -> None:
        self.model = build_model(segment.model, segment.seed)
        self._parameters = list(self.model.parameters())
        self._adam = segment.optimizer == "adam"
        if self._adam:
            self._optimizer: torch.optim.Optimizer = torch.optim.Adam(self._parameters, lr=segment.lr)
        else:
            self._optimizer = torch.optim.SGD(self._parameters, lr=segment.lr, momentum=segment.momentum)

    @property
    def size(self) -> int:
        return sum(parameter.numel() for parameter in self._parameters)

    def gradient(self, images: Any, labels: Any, out: Vector) -> float:
        self._optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(torch.from_numpy(images)), torch.from_numpy(labels))
        loss.backward()
        flat, at = torch.from_numpy(out), 0
        for parameter in self._parameters:
            assert parameter.grad is not None
            flat[at : at + parameter.numel()] = parameter.grad.reshape(-1)
            at += parameter.numel()
        return float(loss.detach())

    def step(self, gradient: Vector, segment: TrialSegment) -> None:
        flat, at = torch.from_numpy(gradient), 0
        for parameter in self._parameters:
            assert parameter.grad is not None
            parameter.grad.copy_(flat[at : at + parameter.numel()].view_as(parameter.grad))
            at += parameter.numel()
        for group in self._optimizer.param_groups:
            group["lr"] = segment.lr
            if not self._adam:
                group["momentum"] = segment.momentum
        self._optimizer.step()

    def loss(self, images: Any, labels: Any) -> float:
        with torch.no_grad():
            guesses = self.model(torch.from_numpy(images))
            return float(nn.functional.cross_entropy(guesses, torch.from_numpy(labels)))

    def state(self) -> dict[str, npt.NDArray[Any]]:
        arrays = {f"parameter-{k}": p.detach().numpy() for k, p in enumerate(self._parameters)}
        for k, parameter in enumerate(self._parameters):
            for name, value in self._optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    arrays[f"optimizer-{k}-{name}"] = value.detach().numpy()
        return arrays

    def load(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        with torch.no_grad():
            for k, parameter in enumerate(self._parameters):
                found = state.get(f"parameter-{k}")
                if found is None or found.shape != tuple(parameter.shape):
                    raise UsageError(
                        "the state to go on from is another model's", hint="copy between equal models only"
                    )
                parameter.copy_(torch.from_numpy(np.array(found)))
        for key, value in state.items():
            kind, number, *name = key.split("-", 2)
            if kind == "optimizer":
                self._optimizer.state[self._parameters[int(number)]][name[0]] = torch.from_numpy(np.array(value))


def warm_up() -> None:
    """One step of each optimizer: torch loads parts of itself, Adam's for over a second, when first used."""
    for optimizer in ("sgd", "adam"):
        given = {"label": "warm-up", "iterations": 1, "model": "mlp-1k", "optimizer": optimizer}
        segment = TrialSegment.parse(given)
        trainer = TorchTrainer(segment)
        images, labels = np.zeros((1, 1, 28, 28), np.float32), np.zeros(1, np.int64)
        gradient = np.empty(trainer.size, np.float32)
        trainer.gradient(images, labels, gradient)
        trainer.step(gradient, segment)


if __name__ == "__main__":
    torch.set_num_threads(1)
    warm_up()
    status = serve(TorchTrainer, "torch trainer")
    # Taking torch's libraries apart costs most of a second of a core.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
