"""What distributed training must come to: the same training by a single process on the joint batches.

Run as `python -m agents.worker.reference FILE...` on files written with `save_parameters`; prints one JSON
line a file and exits with 5 when one is out of tolerance.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import nn

from agents.data import Batches, load_dataset
from agents.worker.models import build_model, reads
from agents.worker.parameters import Arrays, load, parameters_of
from agents.worker.segment import Segment
from agents.worker.training import make_optimizer
from topologies.errors import RunFailedError, StormbedError, UsageError

# float32 sums of gradients in another order, over some tens of steps.
RELATIVE: Final = 1e-3
ABSOLUTE: Final = 1e-5


@dataclass(frozen=True)
class Comparison:
    """Distributed parameters against the reference.

    Attributes:
        parameters, iterations: how many.
        moved: largest change of any parameter since the first weights; a comparison of a training that moved
            nothing says nothing.
        max_abs_difference: between the two, over all parameters.
        within_tolerance: every parameter within 1e-5 + 1e-3 of its size.
    """

    parameters: int
    iterations: int
    moved: float
    max_abs_difference: float
    within_tolerance: bool


def reference_parameters(history: Sequence[Segment], world_size: int) -> Arrays:
    """Parameters after these segments, trained here on the joint batch of `world_size` workers.

    The mean over the joint batch is the mean of the workers' means, since all batches have one size. The
    first segment is fresh, the others go on from it.
    """
    if not history or any(segment.fresh for segment in history[1:]):
        raise UsageError("a history begins with a fresh segment and goes on without one")
    first = history[0]
    batches = Batches(load_dataset(first.data, first.seed, reads(first.model)), first.batch, world_size, first.seed)
    model = build_model(first.model, first.seed)
    optimizer = make_optimizer(model, first)
    iteration = 0
    for segment in history:
        for options in optimizer.param_groups:
            options["lr"] = segment.lr
        for _ in range(segment.iterations):
            images, labels = batches.of(iteration)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(torch.from_numpy(images)), torch.from_numpy(labels)).backward()
            optimizer.step()
            iteration += 1
    return parameters_of(model)


def compare(trained: Arrays, history: Sequence[Segment], world_size: int) -> Comparison:
    """Compares parameters with what a single process comes to.

    Raises RunFailedError when names or shapes differ.
    """
    expected = reference_parameters(history, world_size)
    start = parameters_of(build_model(history[0].model, history[0].seed))
    if {k: v.shape for k, v in trained.items()} != {k: v.shape for k, v in expected.items()}:
        raise RunFailedError(f"these are not the parameters of {history[0].model}")
    differences = [np.abs(trained[k].astype(np.float64) - expected[k]) for k in expected]
    bounds = [ABSOLUTE + RELATIVE * np.abs(expected[k].astype(np.float64)) for k in expected]
    return Comparison(
        parameters=sum(v.size for v in expected.values()),
        iterations=sum(segment.iterations for segment in history),
        moved=float(max(np.abs(expected[k] - start[k]).max() for k in expected)),
        max_abs_difference=float(max(d.max() for d in differences)),
        within_tolerance=all(bool((d <= b).all()) for d, b in zip(differences, bounds, strict=True)),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m agents.worker.reference", description=__doc__)
    parser.add_argument("file", nargs="+", type=Path, help="parameters-*.npz of a worker")
    code = 0
    for path in parser.parse_args(arguments).file:
        try:
            result = compare(*load(path))
        except StormbedError as error:
            sys.stderr.write(f"{path}: {error}\n")
            return error.exit_code
        sys.stdout.write(json.dumps({"schema": 1, "file": str(path), **asdict(result)}) + "\n")
        if not result.within_tolerance:
            code = RunFailedError.exit_code
    return code


if __name__ == "__main__":
    sys.exit(main())
