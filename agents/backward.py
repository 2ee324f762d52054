"""What a backward pass hands over while it runs: which parameters share a bucket, when, and in which class. Pure.

The backward pass begins with the last layers, so their buckets are full first. What comes later belongs to earlier
layers, is waited for by everything after it, and must not queue behind what was sent before: each further bucket has
the next higher class (0, 1, .. 7), which lanes and links serve first.

A declared compute time is spread over the buckets: the forward pass takes a third of it, as a backward pass costs
about twice as much, and the backward pass takes its time in proportion to the parameters (own).

Apart from `agents.worker` because the simulated world hands over the same buckets at the same times without torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from agents.sync.spec import MOST_CLASS

FORWARD: Final = 1 / 3
GRADIENT_BYTES: Final = 4


def class_of(bucket: int) -> int:
    """The class of a bucket by its place among them, 0 being full first."""
    return min(MOST_CLASS, bucket)


def share_of_time(done: int, parameters: int) -> float:
    """Which share of an iteration's compute time is over when so many parameters have their gradients."""
    return FORWARD + (1 - FORWARD) * done / parameters


def fill_buckets(gradients: Sequence[int], bucket_bytes: int) -> tuple[int, ...]:
    """The elements of DDP's buckets, in the order in which they are full.

    Args:
        gradients: elements of the parameters' gradients (float32), in the order in which they are ready.
        bucket_bytes: the gradient with which a bucket has so much is its last.

    Source: torch 2.13, `compute_bucket_assignment_by_size` as `Reducer::rebuild_buckets` calls it; a bucket size that
    is asked for holds for the first bucket too. Before the first iteration DDP does not know the order, and puts all
    into one bucket.
    """
    buckets: list[int] = []
    filling = 0
    for elements in gradients:
        filling += elements
        if filling * GRADIENT_BYTES >= bucket_bytes:
            buckets.append(filling)
            filling = 0
    return (*buckets, filling) if filling else tuple(buckets)
