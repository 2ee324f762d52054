"""The training of trials without a network: what the simulated world takes their scores from.

The mean gradient of a trial's workers is the gradient of their joint batch, so one process comes to the same scores
as the emulated workers but for rounding. Nothing is trained twice: turns of one repeat have the same trials.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from agents.data import Batches, Dataset, load_dataset
from agents.numpy_trainer import NumpyTrainer
from agents.search.base import TrialRun
from agents.trials import TrialSegment

State = dict[str, np.ndarray[Any, np.dtype[Any]]]


@dataclass(frozen=True)
class Trained:
    """A trial at a boundary: its score, and what it goes on from."""

    score: float | None
    state: State


class Training:
    """Trains trials on demand.

    Args:
        data: name or path of the data set.
    """

    def __init__(self, data: str) -> None:
        self._data = data
        self._datasets: dict[int, Dataset] = {}
        self._known: dict[tuple[Any, ...], Trained] = {}

    def train(
        self,
        run: TrialRun,
        settings: Mapping[str, Any],
        layers: tuple[int, ...],
        seed: int,
        workers: int,
        source: Trained | None,
    ) -> Trained:
        """A trial from its start (`source` where that is a state) to its boundary.

        Args:
            settings: model, lr, batch, momentum.
            seed: of its first weights and its data, unique among trials.
            workers: how many share the joint batch.
        """
        key = (seed, run.start, run.end, json.dumps(dict(settings), sort_keys=True), workers, id(source))
        if key not in self._known:
            self._known[key] = self._train(run, settings, layers, seed, workers, source)
        return self._known[key]

    def _train(
        self,
        run: TrialRun,
        settings: Mapping[str, Any],
        layers: tuple[int, ...],
        seed: int,
        workers: int,
        source: Trained | None,
    ) -> Trained:
        trainer = NumpyTrainer(layers, seed)
        if source is not None:
            trainer.load(source.state)
        segment = TrialSegment(label="", iterations=run.iterations, seed=seed, **settings)
        dataset = self._dataset(seed)
        batches = Batches(dataset, segment.batch, workers, seed)
        gradient = np.empty(trainer.size, np.float32)
        for number in range(run.start, run.end):
            trainer.gradient(*batches.of(number), gradient)
            trainer.step(gradient, segment)
        score = trainer.loss(dataset.test_x, dataset.test_y)
        state = {name: array.copy() for name, array in trainer.state().items()}
        return Trained(score if np.isfinite(score) else None, state)

    def _dataset(self, seed: int) -> Dataset:
        key = seed if self._data == "synthetic" else 0
        if key not in self._datasets:
            self._datasets[key] = load_dataset(self._data, seed)
        return self._datasets[key]
